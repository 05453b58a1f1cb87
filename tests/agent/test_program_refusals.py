"""Programs that cannot be paused, and drivers that cannot pause: status has the reason, and the others go on."""

from pathlib import Path

import pytest

from fakes.cuda.build import build_driver
from fakes.shared_gpu import MATMUL, Rates, SharedProgram
from parsing import parsed
from shared_node import SharedNode, shared_node
from waiting import until

pytestmark = pytest.mark.long

HEAVY = MATMUL[4096]
REASONS = {
    3: "not a CUDA process",
    304: "no such process, or no right to pause it",
    600: "timeout: submitted GPU work did not finish in time",
    801: "not supported for this process",
}
USER = 20010
HANGING, SLOW = len(REASONS), len(REASONS) + 1
AGAIN = "; it is tried again in "
# After three attempts that failed, a program is left alone for a minute.
ATTEMPTS, LEFT_ALONE_S = 3, 60
# Nothing is resumed because it was paused for too long.
SECTIONS = "[scheduler]\nmax_pause_s = 600\n"
# The three attempts to pause a program that hangs take 10 s at least; others get more than a tenth of that meanwhile.
MEANWHILE_S = 1.0
SLOW_TURNS = 3
# A machine that stands still for a second spoils some turns: one of these must show the due.
WINDOWS = 4


def test_a_program_that_cannot_be_paused_is_left_alone_with_the_reason() -> None:
    with shared_node(len(REASONS) + 2) as node:
        refusing: dict[int, SharedProgram] = {}
        others: list[SharedProgram] = []
        for gpu, code in enumerate(REASONS):
            # Owners take turns that have different numbers of programs.
            refusing[code] = node.program(HEAVY, gpu=gpu, uid=USER)
            others += [node.program(HEAVY, gpu=gpu) for _ in range(2)]
            node.shared.cuda.say(f"fail lock {code} {refusing[code].pid}")
        hanging, *neighbours = (node.program(HEAVY, gpu=HANGING, uid=uid) for uid in (USER, None, None))
        node.shared.cuda.say(f"hang lock {hanging.pid}")
        slow, *quick = (node.program(MATMUL[8192], gpu=SLOW, uid=uid) for uid in (USER, USER, None))
        slow.program.drain_in(0.3)
        begun_s = node.shared.works().now_s
        node.start_agent(sections=SECTIONS)
        until((node.record / str(hanging.pid)).exists, "a lock hangs")
        done_s = [program.progress() for program in neighbours]

        sentences = node.reasons(*refusing.values(), saying=AGAIN)
        passed_s = node.shared.works().now_s - begun_s
        for sentence, (code, program) in zip(sentences, refusing.items(), strict=True):
            reason, again = sentence.split(AGAIN)
            assert reason == f"pid {program.pid} cannot be paused: {REASONS[code]}"
            assert LEFT_ALONE_S - passed_s - 1 <= float(again.removesuffix(" s")) <= LEFT_ALONE_S, passed_s
            assert program.program.locks == 0
        until(lambda: not any(other.locked for other in others), "those next to them run")

        # A slow one costs its own time.
        node.wait_for(lambda: node.way(SLOW) == "turns", "turns next to a slow one")
        for _ in range(WINDOWS):
            rates = rates_over_turns(node, slow)
            total = sum(rates.of(program) for program in (slow, *quick))
            if is_due := 0.08 <= rates.of(slow) <= 0.6 and total >= 0.8:
                break
        assert is_due, rates

        # A lock that hangs keeps no other program paused.
        node.wait_for(lambda: node.standing(hanging) == "hanging", "it is shown")
        node.wait_for(lambda: node.reason(HANGING) == "call_hangs", "the others run together")
        gained_s = [program.progress() - before for program, before in zip(neighbours, done_s, strict=True)]
        assert min(gained_s) >= MEANWHILE_S, gained_s

        assert attempts(node, "not_cuda", "operating_system", "not_supported") == [ATTEMPTS] * 3, (
            "none is tried too soon"
        )

        # The agent ends, and resumes all others, although a call has not returned.
        assert node.agent.stop() == 0
        programs = [job for job in node.shared.jobs if isinstance(job, SharedProgram)]
        assert not any(program.locked for program in programs)
        node.shared.cuda.unsay("hang")
        hanging.program.runs()


def rates_over_turns(node: SharedNode, program: SharedProgram) -> Rates:
    """From one of its pauses to a later one, however long that takes."""

    def wait_for_pauses(count: int) -> None:
        locks = program.program.locks
        until(lambda: program.program.locks >= locks + count, f"it is asked to pause {count} times")

    wait_for_pauses(1)
    before = node.shared.works()
    wait_for_pauses(SLOW_TURNS)
    return node.shared.rates_since(before)


def attempts(node: SharedNode, *reasons: str) -> list[float]:
    """How many attempts to pause a program failed for each of these reasons."""
    series = parsed(node.agent.get("/metrics/gpucommons")[1])
    name = "gpucommons_pauser_failures_total"
    return [series[name, (("operation", "lock"), ("reason", reason))] for reason in reasons]


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
