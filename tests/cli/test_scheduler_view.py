"""`scheduler status` and `explain` from the document of turns: names, gains, and programs that are left alone."""

from dataclasses import replace
from typing import Any

from demo_node import DemoNode
from gpucommons.base.text import printable_lines
from gpucommons.cli.scheduler_view import explanations, status_lines, turns_of_target
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
    return document(READING._replace(clients=(program(READING.clients[0]), *READING.clients[1:])))


def test_a_client_is_shown_by_its_name() -> None:
    lines = list(status_lines(with_program()))
    assert f"  running  {NAME} for 3.0 s" in lines
    assert not [line for line in lines if "none" in line]


def test_the_gain_and_a_coarse_decision_are_in_the_line_of_the_gpu() -> None:
    first, second = (line for line in status_lines(document()) if line.startswith("GPU "))
    assert first.endswith("; gain over the driver's time-slicing +34 % (estimate)")
    assert second.endswith("; SM activity (GPM) cannot be read: turns are taken for fairness only, not for a gain")


def test_gpus_are_in_order_with_their_mig_devices_and_without_the_memory_of_another() -> None:
    first, second = READING.gpus
    gpus = (
        replace(second, uuid="MIG-b", slot="10.0", running=(), request_queue=()),
        replace(second, uuid="GPU-b", slot="10", running=(), request_queue=()),
        replace(second, uuid="MIG-a", slot="2.1", running=(), request_queue=()),
        replace(first, slot="2", way="linked", running=(), request_queue=()),
    )
    lines = list(status_lines(document(READING._replace(clients=(), gpus=gpus))))
    named = [line.split(":")[0] for line in lines if line.startswith("GPU ")]
    assert named == ["GPU 2", "GPU 2.1", "GPU 10", "GPU 10.0"]
    assert not lines[2].startswith("  memory"), "programs on several GPUs stand below the first of them"


def test_a_loss_has_its_sign() -> None:
    gpus = tuple(replace(gpu, gain_ratio=0.9, coarse=False) for gpu in READING.gpus)
    (line, _) = (line for line in status_lines(document(READING._replace(gpus=gpus))) if line.startswith("GPU "))
    assert "time-slicing -10 % (estimate)" in line


def test_without_a_measurement_there_is_nothing_to_say() -> None:
    gpus = tuple(replace(gpu, gain_ratio=None, coarse=False) for gpu in READING.gpus)
    text = "\n".join(status_lines(document(READING._replace(gpus=gpus))))
    assert "gain" not in text
    assert "coarse" not in text


def test_what_is_left_alone_is_a_section_with_reasons() -> None:
    lines = list(status_lines(document()))
    assert lines[0] == "scheduler on, mode auto, share_programs = all, 6 clients"
    assert lines[-3:] == [
        "left alone",
        "  alice · Xorg (pid 77): it is a display server (Xorg)",
        "  bob · serve.py (pid 78): its container has the label gpucommons.share=no",
    ]
    off = READING._replace(share_programs="off", left_alone=())
    assert "left alone" not in "\n".join(status_lines(document(off)))
    assert next(status_lines(document(off))) == "scheduler on, mode auto, 6 clients"


def test_names_cannot_control_the_terminal() -> None:
    """The names are printable already; the text is escaped once more where it is printed, whatever the agent sent."""
    hostile = READING._replace(
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
        assert line.startswith(f"{NAME} on GPU 0")
    assert explanations(turns, "none") == []
    assert explanations(turns, "none/none") == []
    assert len(explanations(turns, READING.clients[1].pod)) == 1


def test_explain_says_why_a_program_is_left_alone() -> None:
    for target in ("alice · Xorg (pid 77)", "pid:77"):
        (line,) = explanations(document(), target)
        assert line == "alice · Xorg (pid 77) is left alone: it is a display server (Xorg)."
    assert explanations(document(), "pid:7") == []


def test_the_document_of_explain_has_what_its_text_is_about() -> None:
    turns = document()
    alone = turns_of_target(turns, "pid:77")
    assert [one["name"] for one in alone["left_alone"]] == ["alice · Xorg (pid 77)"]
    assert (alone["clients"], alone["gpus"]) == ({}, turns["gpus"])
    client = turns_of_target(turns, READING.clients[1].client_id)
    assert (client["clients"].keys(), client["left_alone"]) == ({READING.clients[1].client_id}, [])


def test_a_stopped_program_is_shown_with_the_words_of_the_api() -> None:
    words = "stopped by its user: a stop signal, such as Ctrl-Z"
    first = READING.clients[0]._replace(standing="stopped", held_up=words, turn_s=None, wait=None, revoked=False)
    turns = document(READING._replace(clients=(first, *READING.clients[1:])))
    assert explanations(turns, first.client_id)[0].endswith(f" takes no turns: {words}.")
    assert any(line.startswith("  stopped  ") and line.endswith(words) for line in status_lines(turns))


def test_a_resting_program_is_not_called_waiting() -> None:
    first = READING.clients[0]._replace(standing="resting", turn_s=None, wait=None, revoked=False)
    turns = document(READING._replace(clients=(first,)))
    (line,) = explanations(turns, first.client_id)
    assert line.endswith("is not paused: it does not use the GPU now, and takes no turns.")
    assert next(status_lines(turns)).endswith(", 1 client")


def test_the_memory_of_programs_is_that_of_running_and_paused_ones() -> None:
    uuid = READING.gpus[0].uuid
    alike = [client._replace(gpu_uuid=uuid, nvml_bytes=30 << 30) for client in READING.clients[:2]]
    paused, client = alike[0]._replace(program="session:1@1"), alike[1]
    for clients, expected in (
        ((paused,), "  memory: 30.0 GiB held by programs, safe limit"),
        ((paused, client), "  memory: 30.0 GiB held by programs, 30.0 GiB running, safe limit"),
        ((client,), "  memory: 30.0 GiB running, safe limit"),
    ):
        gpu = replace(READING.gpus[0], running_memory_bytes=30 << 30)
        lines = status_lines(document(READING._replace(gpus=(gpu,), clients=clients)))
        assert any(line.startswith(expected) for line in lines)
