"""When a program counts as idle, and when a parked one goes on."""

from gpucommons.scheduler.parking.idleness import Idleness, ParkedCpu, after_cpu, after_gpu, after_look


def looked(idleness: Idleness, *rows: tuple[float, float | None]) -> Idleness:
    """After looks at these times, with these CPU seconds."""
    for now_s, used_s in rows:
        idleness = after_cpu(idleness, used_s, now_s)
    return idleness


def test_idle_counts_from_when_both_gpu_and_cpu_are_idle() -> None:
    start = after_gpu(Idleness(), idle=True, as_of_s=10.0)
    assert start.idle_s(20.0) == 0, "the CPU has not been looked at"
    both = looked(start, (12.0, 5.0), (13.0, 5.001))
    assert both.idle_s(20.0) == 8.0
    assert after_gpu(both, idle=False, as_of_s=21.0).idle_s(30.0) == 0


def test_using_the_cpu_begins_the_count_again() -> None:
    start = after_gpu(Idleness(), idle=True, as_of_s=0.0)
    busy = looked(start, (1.0, 5.0), (2.0, 5.0), (3.0, 5.1))
    assert busy.idle_s(4.0) == 1.0
    assert looked(busy, (4.0, None)).idle_s(9.0) == 0, "unknown is not idle"


def test_the_background_is_learnt_while_idle() -> None:
    quiet = looked(after_gpu(Idleness(), True, 0.0), *((float(at), at * 0.01) for at in range(1, 60)))
    assert 0.009 < quiet.background < 0.0101
    assert quiet.idle_s(60.0) == 59.0


def test_the_background_is_never_overestimated_at_first() -> None:
    """One busy look must not hide the first cell: a program that is missed sleeps on, one that wakes in vain is parked
    again."""
    busy_start = looked(after_gpu(Idleness(), True, 0.0), (1.0, 5.0), (2.0, 5.015))
    assert busy_start.background < 0.002


def after_looks(start: ParkedCpu, *rows: tuple[float, float]) -> list[bool]:
    found = []
    for now_s, used_s in rows:
        start, goes_on = after_look(start, used_s, now_s)
        found.append(goes_on)
    return found


def test_an_idle_program_goes_on_at_its_first_use_of_the_cpu() -> None:
    start = ParkedCpu(0.0, quiet_since_s=float("-inf"))
    assert after_looks(start, (1.0, 5.0), (1.25, 5.001), (1.5, 5.006)) == [False, False, True]


def test_a_program_parked_while_it_worked_must_be_quiet_first() -> None:
    rows = ((1.0, 5.0), (1.5, 5.4), (2.0, 5.41), (2.5, 5.41), (4.5, 5.41), (4.75, 5.43))
    assert after_looks(ParkedCpu(0.0), *rows) == [False, False, False, False, False, True]


def test_only_more_than_its_background_wakes_a_program() -> None:
    """A notebook with a poller that uses 1 % of a CPU."""
    start = ParkedCpu(0.01, quiet_since_s=float("-inf"))
    rows = ((1.0, 5.0), (2.0, 5.01), (3.0, 5.03), (4.0, 5.07))
    assert after_looks(start, *rows) == [False, False, False, True]
