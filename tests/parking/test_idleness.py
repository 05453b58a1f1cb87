"""When a program counts as idle, and when a parked one goes on."""

from gpucommons.scheduler.parking.idleness import (
    Idleness,
    IdleThreads,
    ParkedCpu,
    ThreadTimes,
    after_cpu,
    after_gpu,
    after_look,
)


def looked(idleness: Idleness, *rows: tuple[float, float | None]) -> Idleness:
    """After looks at these times, with these CPU seconds."""
    for now_s, used_s in rows:
        idleness = after_cpu(idleness, None if used_s is None else {1: used_s}, now_s)
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
        start, goes_on = after_look(start, {1: used_s}, now_s)
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


# Threads: 1 waits for requests, 2 polls now and then, 3 is one of a pool.

IDLE_ROWS: tuple[ThreadTimes, ...] = tuple({1: 9.0, 2: 1.0 + 0.0005 * at, 3: 4.0} for at in range(5))


def idle_program(*rows: ThreadTimes) -> Idleness:
    idleness = after_gpu(Idleness(), True, 0.0)
    for at, threads in enumerate(rows):
        idleness = after_cpu(idleness, threads, 10.0 * at)
    return idleness


def parked(idleness: Idleness) -> ParkedCpu:
    return ParkedCpu(idleness.background, quiet_since_s=float("-inf"), idle_threads=idleness.known_threads)


def goes_on(start: ParkedCpu, *rows: ThreadTimes) -> list[bool]:
    results = []
    for at, threads in enumerate(rows):
        start, result = after_look(start, threads, 100 + 0.25 * at)
        results.append(result)
    return results


def test_a_thread_that_slept_shows_the_use_by_little_time() -> None:
    """The program with a DataLoader on an H200 used 0.5 ms before it slept in CUDA, one of two processes 0.2 ms."""
    start = parked(idle_program(*IDLE_ROWS))
    used = {**IDLE_ROWS[-1], 3: 4.0002}
    assert goes_on(start, IDLE_ROWS[-1], IDLE_ROWS[-1], used) == [False, False, True]


def test_a_new_thread_shows_the_use() -> None:
    """A server with a thread for each request: 1.4 ms in two looks."""
    start = parked(idle_program(*IDLE_ROWS))
    assert goes_on(start, IDLE_ROWS[-1], {**IDLE_ROWS[-1], 4: 0.0007}) == [False, True]


def test_a_thread_that_polls_does_not_wake_a_program() -> None:
    start = parked(idle_program(*IDLE_ROWS))
    polls = [{**IDLE_ROWS[-1], 2: 1.01 + 0.0005 * at} for at in range(8)]
    assert not any(goes_on(start, *polls))


def test_new_threads_say_nothing_of_a_program_that_makes_them_while_idle() -> None:
    rows = [{1: 9.0, 100 + at: 0.0003} for at in range(5)]
    start = parked(idle_program(*rows))
    assert not any(goes_on(start, *({1: 9.0, 200 + at: 0.0003} for at in range(5))))
    assert goes_on(start, {1: 9.0, 200: 0.0003}, {1: 9.0002, 201: 0.0003}) == [False, True]


def test_threads_are_known_after_several_looks_of_one_idle_time() -> None:
    assert idle_program(*IDLE_ROWS[:3]).known_threads is None
    assert idle_program(*IDLE_ROWS[:4]).known_threads == IdleThreads(frozenset({2}))
    busy = {**IDLE_ROWS[-1], 1: 19.0}
    assert idle_program(*IDLE_ROWS, busy).known_threads is None, "it worked meanwhile"
    assert idle_program(*IDLE_ROWS, busy, busy, busy, busy).known_threads == IdleThreads()
