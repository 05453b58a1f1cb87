"""`scheduler status` and `explain` from the document of turns: names, gains, and programs that are left alone."""

from dataclasses import replace
from typing import Any

from demo_node import DemoNode
from gpucommons.base.printable import printable_lines
from gpucommons.cli.scheduler_view import explanations, status_lines
from gpucommons.faces.documents.turns import turns_of
from gpucommons.model.sharing import ClientSharing, LeftAlone, SharingReading

READING = DemoNode(gpus=2).sharing(3.0)
NAME = "alice · train.py (pid 4711)"


def program(client: ClientSharing) -> ClientSharing:
    return client._replace(
        name=NAME, pod="none", namespace="none", program="session:812@1000", processes=(4711, 4712), pid=4711
    )


def document(reading: SharingReading = READING) -> dict[str, Any]:
    return turns_of(reading, {})


def with_program() -> dict[str, Any]:
    return document(replace(READING, clients=(program(READING.clients[0]), *READING.clients[1:])))


def test_a_client_is_shown_by_its_name() -> None:
    lines = list(status_lines(with_program()))
    id = READING.clients[0].client_id
    assert f"  running  {NAME} ({id}) for 3.0 s" in lines
    assert not [line for line in lines if "none" in line]


def test_the_gain_and_a_coarse_decision_are_in_the_line_of_the_gpu() -> None:
    first, second = (line for line in status_lines(document()) if line.startswith("GPU "))
    assert first.endswith("; gain over the driver's time-slicing +34 % (measured)")
    assert second.endswith("; decided by utilisation, which is coarse: SM activity (GPM) cannot be read")


def test_a_loss_has_its_sign() -> None:
    gpus = tuple(replace(gpu, gain_ratio=0.9, coarse=False) for gpu in READING.gpus)
    (line, _) = (line for line in status_lines(document(replace(READING, gpus=gpus))) if line.startswith("GPU "))
    assert "time-slicing -10 % (measured)" in line


def test_without_a_measurement_there_is_nothing_to_say() -> None:
    gpus = tuple(replace(gpu, gain_ratio=None, coarse=False) for gpu in READING.gpus)
    text = "\n".join(status_lines(document(replace(READING, gpus=gpus))))
    assert "gain" not in text
    assert "coarse" not in text


def test_what_is_left_alone_is_a_section_with_reasons() -> None:
    lines = list(status_lines(document()))
    assert lines[0] == "scheduler on, mode auto, programs all, 6 clients"
    assert lines[-3:] == [
        "left alone",
        "  alice · Xorg (pid 77): it is a display server (Xorg)",
        "  bob · serve.py (pid 78): its container has the label gpucommons.share=no",
    ]
    off = replace(READING, share_programs="off", left_alone=())
    assert "left alone" not in "\n".join(status_lines(document(off)))
    assert next(status_lines(document(off))) == "scheduler on, mode auto, 6 clients"


def test_names_cannot_control_the_terminal() -> None:
    """The names are printable already; the text is escaped once more where it is printed, whatever the agent sent."""
    hostile = replace(
        READING,
        clients=tuple(client._replace(name="a\x1b[2J\n") for client in READING.clients),
        left_alone=(LeftAlone("b\x1b[2J", "label", "c\x1b[2J\n"),),
    )
    lines = [*status_lines(document(hostile)), *explanations(document(hostile), READING.clients[0].client_id)]
    printed = printable_lines(lines).splitlines()
    assert len(printed) == len(lines) > 5
    assert all(line.isprintable() for line in printed)


def test_explain_finds_a_program_by_each_of_its_names() -> None:
    turns, id = with_program(), READING.clients[0].client_id
    for target in (id, NAME, "session:812@1000", "pid:4711", "pid:4712"):
        (line,) = explanations(turns, target)
        assert line.startswith(f"{NAME} ({id}) on GPU 0")
    assert explanations(turns, "none") == []
    assert explanations(turns, "none/none") == []
    assert len(explanations(turns, READING.clients[1].pod)) == 1


def test_explain_says_that_a_program_rests() -> None:
    rests = program(READING.clients[0])._replace(standing="resting", wait=None, turn_s=None)
    (line,) = explanations(document(replace(READING, clients=(rests,))), "pid:4711")
    assert line.endswith(" rests: it does not use the GPU, and is not paused.")


def test_explain_says_why_a_program_is_left_alone() -> None:
    (line,) = explanations(document(), "alice · Xorg (pid 77)")
    assert line == "alice · Xorg (pid 77) is left alone: it is a display server (Xorg)."
