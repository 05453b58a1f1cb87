"""Programs that cannot be paused, and drivers that cannot pause: status has the reason, and the others go on."""

from pathlib import Path

from fakes.cuda.build import build_driver
from fakes.shared_gpu import MATMUL, SharedProgram
from shared_node import shared_node

HEAVY = MATMUL[4096]
REASONS = {
    3: "not a CUDA process",
    304: "no such process, or no right to pause it",
    600: "timeout: submitted GPU work did not finish in time",
    801: "not supported for this process",
}
HANGING, SLOW = len(REASONS), len(REASONS) + 1


def test_a_program_that_cannot_be_paused_is_left_alone_with_the_reason() -> None:
    with shared_node(len(REASONS) + 2) as node:
        refusing: dict[int, SharedProgram] = {}
        others: list[SharedProgram] = []
        for gpu, code in enumerate(REASONS):
            refusing[code] = node.program(HEAVY, gpu=gpu)
            others.append(node.program(HEAVY, gpu=gpu))
            node.shared.cuda.say(f"fail lock {code} {refusing[code].pid}")
        hanging, *neighbours = (node.program(HEAVY, gpu=HANGING) for _ in range(3))
        node.shared.cuda.say(f"hang lock {hanging.pid}")
        slow, *quick = (node.program(HEAVY, gpu=SLOW) for _ in range(3))
        slow.program.drain_in(0.3)
        node.start_agent()
        sentences = node.reasons(*refusing.values(), saying="it is tried again in")
        for sentence, (code, program) in zip(sentences, refusing.items(), strict=True):
            assert sentence.startswith(f"pid {program.pid} cannot be paused: {REASONS[code]}; it is tried again in ")
            assert program.program.locks == 0
        assert not any(other.locked for other in others)

        # A lock that hangs keeps no other program paused, and a slow one costs its own time.
        node.wait_for(lambda: node.way(SLOW) == "turns", "turns next to a slow one")
        before = node.shared.works()
        node.shared.let_pass(4.0)
        rates = node.shared.rates_since(before)
        assert min(rates.of(program) for program in neighbours) >= 0.1, rates
        assert 0.15 <= rates.of(slow) <= 0.6, rates
        assert sum(rates.of(program) for program in (slow, *quick)) >= 0.8, rates

        # The agent ends, and resumes all others, although a call has not returned.
        assert node.agent.stop() == 0
        programs = [job for job in node.shared.jobs if isinstance(job, SharedProgram)]
        assert not any(program.locked for program in programs)
        node.shared.cuda.unsay("hang")
        hanging.program.runs()


def test_without_the_calls_programs_run_and_status_says_why(tmp_path: Path) -> None:
    with shared_node() as node:
        old = build_driver(tmp_path, old=True)
        libraries = f"{node.shared.nvml.library.parent}:{old.parent}"
        node.start_agent(environment={"LD_LIBRARY_PATH": libraries})
        programs = [node.program(HEAVY) for _ in range(2)]
        for sentence in node.reasons(*programs, saying="r570"):
            assert sentence.startswith("no program can be paused: ")
        assert [program.program.locks for program in programs] == [0, 0]
        assert len([line for line in node.agent.lines if "r570" in line]) == 1, "logged once, not for each attempt"
