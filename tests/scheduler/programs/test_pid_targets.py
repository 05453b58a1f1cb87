"""A limit for a pid ends when another process has the pid, and not before."""

from gpucommons.model.process_identity import ProcessKey
from gpucommons.scheduler.programs.jobs import GpuUser
from gpucommons.scheduler.programs.matching import PidTargets


def process(pid: int, start_ticks: int) -> GpuUser:
    return GpuUser(pid, ProcessKey(pid, start_ticks), f"session:{pid}@0", ())


def test_the_limit_of_a_pid_ends_with_its_process() -> None:
    targets = PidTargets()
    limited = {"pid:10", "pid:11", "user:alice"}
    assert targets.see(frozenset(), [process(10, 1)]) == []
    # It was set between two readings, for the process of the first.
    assert targets.see(limited, [process(10, 2), process(11, 1)]) == ["pid:10"]
    assert targets.see(limited - {"pid:10"}, [process(10, 2)]) == []
    assert targets.see({"pid:11"}, []) == []
    assert targets.see({"pid:11"}, [process(11, 1)]) == [], "it used no GPU for a while"
    assert targets.see({"pid:11"}, []) == []
    assert targets.see({"pid:11"}, [process(11, 2)]) == ["pid:11"]


def test_a_limit_that_is_set_again_is_for_the_new_process() -> None:
    targets = PidTargets()
    assert targets.see({"pid:10"}, [process(10, 1)]) == []
    assert targets.see({"pid:10"}, [process(10, 2)]) == ["pid:10"]
    assert targets.see({"pid:10"}, [process(10, 2)]) == []
