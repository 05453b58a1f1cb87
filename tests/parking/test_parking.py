"""Parking with a real pauser and the fake driver: each error, crashes in each stage, random runs."""

import asyncio
import os
import random
import signal
import threading
from collections.abc import Iterable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fakes.cuda.control import FakeCuda, FakeProgram
from gpucommons.config.scheduler import ParkingSettings
from gpucommons.model.host import HostMemory
from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.sharing import ParkedReading
from gpucommons.pauser.backend import State
from gpucommons.pauser.protocol import Notice, NoticeKind
from gpucommons.scheduler.parking.host import ThisHost
from gpucommons.scheduler.parking.programs import ResidentPrograms
from gpucommons.scheduler.parking.values import RoomNeed
from gpucommons.scheduler.programs.jobs import GpuUser, Program
from gpucommons.scheduler.programs.matching import ProgramRule
from parking.rig import GPU, ParkingRig
from pauser.conftest import cuda, cuda_files, record
from stopping import by_signal

__all__ = ["cuda", "cuda_files", "record"]

MIB = 1 << 20
SIZE = 32 * MIB
SLOW = 64 * MIB
SETTINGS = ParkingSettings(min_residence_s=0)
# One run of many small ones; PARKING_RUNS=1000 takes half an hour.
RUNS = int(os.environ.get("PARKING_RUNS", "6"))


def started(cuda: FakeCuda, number: int = 1, size: int = SIZE) -> list[FakeProgram]:
    found = [cuda.start(size) for _ in range(number)]
    for one in found:
        one.wait_for_user()
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("call", "code", "why"),
    [
        ("lock", 304, "not_locked"),
        ("lock", 600, "not_locked"),
        ("lock", 801, "not_locked"),
        ("checkpoint", 801, "managed_memory"),
        ("checkpoint", 2, "failed"),
        ("checkpoint", 999, "failed"),
    ],
)
def test_a_program_that_cannot_be_parked_goes_on(cuda: FakeCuda, record: Path, call: str, code: int, why: str) -> None:
    (program,) = started(cuda)
    rig = ParkingRig(cuda, record, 4 * SIZE, SETTINGS)
    cuda.say(f"fail {call} {code}")

    async def body() -> None:
        rig.read()
        assert rig.parking.orders.park(str(program.pid), None).keys
        await rig.until(lambda: rig.parking.reading().events, "it is refused")
        (event,) = rig.parking.reading().events
        assert (event.kind, event.why) == ("refused", why)
        assert str(code) in event.sentence
        await asyncio.to_thread(program.runs)
        assert rig.stage(program) == "held"
        assert rig.parking.reading().refusals == {why: 1}

    rig.run(body)
    assert list(record.iterdir()) == []


def test_programs_on_a_mig_device_are_refused_before_the_driver_is_asked(cuda: FakeCuda, record: Path) -> None:
    (program,) = started(cuda)
    rig = ParkingRig(cuda, record, 4 * SIZE, SETTINGS)
    rig.device = "MIG-0"
    rig.idle = {program.pid}
    # What the driver says where it is asked.
    cuda.say("fail checkpoint 999")

    async def body() -> None:
        rig.read()
        order = rig.parking.orders.park(str(program.pid), None)
        assert (order.keys, len(order.refused)) == ((), 1)
        assert "the driver cannot move the memory of MIG devices" in order.refused[0]
        assert [event.why for event in rig.parking.reading().events] == ["mig"]
        await asyncio.to_thread(program.runs)

    rig.run(body)


def test_a_program_that_has_memory_already_does_not_wait_for_room(cuda: FakeCuda, record: Path) -> None:
    """It opened device files again, and the pauser took it for new."""
    (program,) = started(cuda)
    rig = ParkingRig(cuda, record, 4 * SIZE, SETTINGS)

    async def body() -> None:
        rig.read(ago_s=10)
        assert (await rig.pauser.lock(program.key, timeout_ms=1000)).failure is None
        rig.parking.hear(Notice(program.key, GPU, NoticeKind.ARRIVED))
        assert rig.parking.newcomers.newcomers == []
        await asyncio.to_thread(program.runs)

    rig.run(body)
    assert list(record.iterdir()) == []


def test_a_program_waits_for_room_once(cuda: FakeCuda, record: Path) -> None:
    """The watch may begin again while its context does. A reading may show the context before the pauser reports it."""
    (program,) = started(cuda)
    rig = ParkingRig(cuda, record, 4 * SIZE, SETTINGS)
    newcomers, arrived = rig.parking.newcomers, Notice(program.key, GPU, NoticeKind.ARRIVED)

    async def body() -> None:
        rig.read()
        assert (await rig.pauser.lock(program.key, timeout_ms=1000)).failure is None
        rig.parking.hear(arrived)
        assert newcomers.processes == {program.key}
        assert (await rig.pauser.unlock(program.key)).failure is None
        rig.parking.hear(replace(arrived, kind=NoticeKind.RESUMED))
        assert (await rig.pauser.lock(program.key, timeout_ms=1000)).failure is None
        rig.parking.hear(arrived)
        assert newcomers.processes == set()
        await asyncio.to_thread(program.runs)

    rig.run(body)


def test_orders_for_a_stopped_program_are_refused_with_the_reason(cuda: FakeCuda, record: Path) -> None:
    (program,) = started(cuda)
    rig = ParkingRig(cuda, record, 4 * SIZE, SETTINGS)

    async def body() -> None:
        rig.read()
        with by_signal(program.pid):
            order = rig.parking.orders.park(str(program.pid), None)
            assert (order.keys, len(order.refused)) == ((), 1)
            assert "stopped by its user: " in order.refused[0]
        assert rig.parking.orders.park(str(program.pid), None).keys
        await rig.until(lambda: rig.stage(program) == "parked", "it is parked")
        with by_signal(program.pid):
            order = rig.parking.orders.wake(str(program.pid), None)
            assert (order.keys, len(order.refused)) == ((), 1)
            assert "stopped by its user: " in order.refused[0]
        assert rig.parking.orders.wake(str(program.pid), None).keys
        os.kill(program.pid, signal.SIGSTOP)
        await asyncio.sleep(0.6)
        os.kill(program.pid, signal.SIGCONT)
        await rig.until(lambda: rig.stage(program) == "held", "it is back once it is continued")
        await asyncio.to_thread(program.runs)

    rig.run(body)


def test_a_restore_that_fails_leaves_the_program_parked_until_the_next_attempt(cuda: FakeCuda, record: Path) -> None:
    (program,) = started(cuda)
    rig = ParkingRig(cuda, record, 4 * SIZE, SETTINGS)

    async def body() -> None:
        rig.read()
        rig.parking.orders.park(str(program.pid), None)
        await rig.until(lambda: rig.stage(program) == "parked", "it is parked")
        cuda.say("fail restore 999")
        rig.parking.orders.wake(str(program.pid), None)
        await rig.until(lambda: "999" in rig.parking.reading().programs[0].waits, "it waits")
        assert program.state is State.CHECKPOINTED
        cuda.unsay("fail")
        rig.parking.orders.wake(str(program.pid), None)
        await rig.until(lambda: rig.stage(program) == "held", "it is back")
        await asyncio.to_thread(program.runs)

    rig.run(body)


def test_an_idle_program_makes_way_for_a_lease_next_to_a_display(cuda: FakeCuda, record: Path) -> None:
    program, display = started(cuda, 2)
    rig = ParkingRig(cuda, record, 4 * SIZE, replace(SETTINGS, idle_after_s=0.5))
    rig.idle, rig.displays = {program.pid, display.pid}, {display.pid}

    async def body() -> None:
        rig.needs = (RoomNeed((GPU,), None, 0.0),)
        await rig.until(lambda: rig.stage(program) == "parked", "it is parked")
        with pytest.raises(ValueError, match="no such program"):
            rig.parking.orders.wake(str(display.pid), None)
        assert rig.parking.orders.park(str(display.pid), None).refused == (
            f"root · unknown command (pid {display.pid}): it is a display server",
        )
        assert display.state is State.RUNNING

    rig.run(body)


def test_a_program_of_the_background_makes_way_for_a_lease_and_comes_back(cuda: FakeCuda, record: Path) -> None:
    (night,) = started(cuda)
    rig = ParkingRig(cuda, record, 2 * SIZE, SETTINGS)
    rig.background = {night.pid}

    async def body() -> None:
        rig.read()
        rig.needs = (RoomNeed((GPU,), 2 * SIZE - MIB, 0.0, id="lease"),)
        await rig.until(lambda: rig.stage(night) == "parked", "it is parked")
        assert [one.cause for one in rig.parking.reading().programs] == ["class background"]
        rig.needs = ()
        await rig.until(lambda: rig.stage(night) == "held", "it is back")
        await asyncio.to_thread(night.runs)

    rig.run(body)


def test_an_idle_program_of_the_background_sleeps_until_it_is_used(cuda: FakeCuda, record: Path) -> None:
    (night,) = started(cuda)
    rig = ParkingRig(cuda, record, 2 * SIZE, replace(SETTINGS, idle_after_s=0.2, eager=True))
    rig.background = rig.idle = {night.pid}

    async def body() -> None:
        await rig.until(lambda: rig.stage(night) == "parked", "it is parked")
        assert [(one.cause, one.waits) for one in rig.parking.reading().programs] == [("idle", "")]
        night.run_cell()
        await rig.until(lambda: night.cells, "its cell ends")

    rig.run(body)


def test_a_program_at_work_stays_where_one_of_the_background_waits(cuda: FakeCuda, record: Path) -> None:
    night, day = started(cuda, 2, SLOW)
    rig = ParkingRig(cuda, record, 2 * SLOW, replace(SETTINGS, oversubscribe=True))
    rig.background = {night.pid}

    async def body() -> None:
        rig.read()
        assert rig.parking.orders.park(str(night.pid), None).keys
        await rig.until(lambda: rig.stage(night) == "parked", "it is parked")
        rig.total = SLOW + SLOW // 2
        rig.parking.orders.wake(str(night.pid), None)
        await rig.until(
            lambda: any("have to stay" in one.waits for one in rig.parking.reading().programs), "it waits for room"
        )
        assert rig.stage(day) == "held"

    rig.run(body)


def test_programs_of_the_background_take_turns_among_each_other(cuda: FakeCuda, record: Path) -> None:
    programs = started(cuda, 2, SLOW)
    rig = ParkingRig(cuda, record, 2 * SLOW, replace(SETTINGS, oversubscribe=True))
    rig.background = {one.pid for one in programs}

    async def body() -> None:
        rig.read()
        assert rig.parking.orders.park(str(programs[0].pid), None).keys
        await rig.until(lambda: rig.stage(programs[0]) == "parked", "it is parked")
        rig.total = SLOW + SLOW // 2
        rig.parking.orders.wake(str(programs[0].pid), None)
        await rig.until(lambda: rig.stage(programs[1]) == "parked", "the other makes room in turn")
        causes = {one.cause for one in rig.parking.reading().programs if programs[1].pid in one.pids}
        assert causes == {"turn"}

    rig.run(body)


def test_all_processes_of_a_program_move_together(cuda: FakeCuda, record: Path) -> None:
    one, two = both = started(cuda, 2)
    rig = ParkingRig(cuda, record, 4 * SIZE, SETTINGS)
    rig.jobs = {one.pid: "job:8@0", two.pid: "job:8@0"}

    async def body() -> None:
        rig.read()
        assert rig.parking.orders.park("job:8@0", None).keys == ("job:8@0",)
        await rig.until(lambda: rig.stage(one) == "parked", "it is parked")
        assert {program.state for program in both} == {State.CHECKPOINTED}
        assert [found.gpu_bytes for found in rig.parking.reading().programs] == [2 * SIZE]
        rig.parking.orders.wake(str(two.pid), None)
        await rig.until(lambda: rig.stage(one) == "held", "it is back")
        for program in both:
            await asyncio.to_thread(program.runs)

    rig.run(body)


@pytest.mark.parametrize("call", ["lock", "checkpoint"])
def test_where_one_process_cannot_be_moved_the_others_come_back(cuda: FakeCuda, record: Path, call: str) -> None:
    one, two = both = started(cuda, 2)
    rig = ParkingRig(cuda, record, 4 * SIZE, SETTINGS)
    rig.jobs = {one.pid: "job:8@0", two.pid: "job:8@0"}
    cuda.say(f"fail {call} 801 {two.pid}")

    async def body() -> None:
        rig.read()
        rig.parking.orders.park("job:8@0", None)
        await rig.until(lambda: rig.parking.reading().events and rig.stage(one) == "held", "it is back")
        assert rig.parking.reading().events[0].kind == "refused"
        for program in both:
            await asyncio.to_thread(program.runs)
            assert program.gpu_bytes == SIZE

    rig.run(body)
    assert list(record.iterdir()) == []


def test_three_programs_that_do_not_fit_together_all_go_on(cuda: FakeCuda, record: Path) -> None:
    """A GPU for two: the third comes back when another has had its turn, and so on."""
    first = started(cuda)[0]
    rig = ParkingRig(cuda, record, 2 * SIZE, replace(SETTINGS, oversubscribe=True))

    async def body() -> None:
        rig.read()
        rig.parking.orders.park(str(first.pid), None)
        await rig.until(lambda: rig.stage(first) == "parked", "it is parked")
        programs = [first, *started(cuda, 2)]
        rig.parking.orders.wake(str(first.pid), None)
        for _ in range(2):
            await _progress_of_all(rig, programs)
        turns = {event.key for event in rig.parking.reading().events if "(turn)" in event.sentence}
        assert turns, "they were parked for each other"
        assert rig.none_stranded()

    rig.run(body)


class ContainerHost(ThisHost):
    """Each program is in a container with so much room for its memory."""

    def __init__(self, room_bytes: int) -> None:
        self.room_bytes = room_bytes

    def container_room_bytes(self, pids: Iterable[int]) -> float:
        return self.room_bytes


@pytest.mark.long
def test_the_memory_limit_of_a_container_counts_for_a_working_program(cuda: FakeCuda, record: Path) -> None:
    """Its pages would be charged there, and the kernel would kill it."""
    (program,) = started(cuda)
    host = ContainerHost(SIZE - 1)
    rig = ParkingRig(cuda, record, SIZE, replace(SETTINGS, oversubscribe=True), host=host)
    rig.needs = (RoomNeed((GPU,), SIZE - MIB, 0.0, id="lease"),)

    async def body() -> None:
        for _ in range(20):
            rig.read()
            await asyncio.sleep(0.1)
        assert rig.stage(program) == "held"
        host.room_bytes = SIZE
        await rig.until(lambda: rig.stage(program) == "parked", "it is parked where there is room")

    rig.run(body)


async def _progress_of_all(rig: ParkingRig, programs: list[FakeProgram]) -> None:
    before = [one.steps for one in programs]

    def is_made() -> bool:
        return all(one.steps > steps for one, steps in zip(programs, before, strict=True))

    await rig.until(is_made, "all make progress")


@pytest.mark.long
def test_a_parked_program_that_is_killed_leaves_no_trace(cuda: FakeCuda, record: Path) -> None:
    (program,) = started(cuda)
    rig = ParkingRig(cuda, record, 4 * SIZE, SETTINGS)

    async def body() -> None:
        rig.read()
        rig.parking.orders.park(str(program.pid), None)
        await rig.until(lambda: rig.stage(program) == "parked", "it is parked")
        program.end()
        await rig.until(lambda: not rig.parking.reading().programs, "it is forgotten")
        await rig.until(lambda: not list(record.iterdir()), "its record goes")

    rig.run(body)


def test_a_restore_waits_for_room_and_the_longest_waiter_is_first(cuda: FakeCuda, record: Path) -> None:
    first, second, big = *started(cuda, 2), started(cuda, 1, 2 * SIZE)[0]
    rig = ParkingRig(cuda, record, 4 * SIZE, SETTINGS)

    async def body() -> None:
        rig.read()
        for one in (first, second):
            rig.parking.orders.park(str(one.pid), None)
        await rig.until(lambda: {rig.stage(first), rig.stage(second)} == {"parked"}, "both are parked")
        grown = started(cuda, 1, 2 * SIZE)[0]
        rig.read()
        rig.parking.orders.wake(str(second.pid), None)
        await asyncio.sleep(0.3)
        rig.parking.orders.wake(str(first.pid), None)
        await rig.until(lambda: "is free" in _row(rig, second).waits, "there is no room")
        await rig.until(lambda: "first" in _row(rig, first).waits, "it waits behind the other")
        grown.end()
        await rig.until(lambda: rig.stage(second) == rig.stage(first) == "held", "both are back")
        kinds = [(event.kind, event.key) for event in rig.parking.reading().events if event.kind == "woken"]
        assert kinds == [("woken", f"process:{second.pid}"), ("woken", f"process:{first.pid}")]
        assert rig.none_stranded()
        await asyncio.to_thread(big.runs)

    rig.run(body)


def _row(rig: ParkingRig, program: FakeProgram) -> ParkedReading:
    return next(one for one in rig.parking.reading().programs if program.pid in one.pids)


@pytest.mark.long
@pytest.mark.parametrize("stage", ["lock", "checkpoint", "restore"])
def test_a_pauser_killed_in_each_stage_loses_nothing(cuda: FakeCuda, record: Path, stage: str) -> None:
    (program,) = started(cuda)
    program.move_at(SLOW)
    rig = ParkingRig(cuda, record, 4 * SIZE, SETTINGS)

    async def body() -> None:
        rig.read()
        if stage == "lock":
            program.drain_in(0.5)
        rig.parking.orders.park(str(program.pid), None)
        if stage == "restore":
            await rig.until(lambda: rig.stage(program) == "parked", "it is parked")
            rig.parking.orders.wake(str(program.pid), None)
            await rig.until(lambda: program.is_asked and rig.stage(program) == "waking", "it is on its way")
        else:
            await rig.until(lambda: program.is_asked, "it is on its way")
            if stage == "checkpoint":
                await rig.until(lambda: program.state is State.LOCKED and program.is_asked, "it is on its way")
        assert rig.pauser.pid is not None
        os.kill(rig.pauser.pid, signal.SIGKILL)
        await rig.until(lambda: rig.pauser.available and rig.stage(program) == "held", "it is back")
        await asyncio.to_thread(program.runs)
        assert program.gpu_bytes == SIZE

    rig.run(body)
    assert list(record.iterdir()) == []


def test_random_runs_never_strand_a_program(cuda: FakeCuda, record: Path) -> None:
    """Programs begin, end, are parked and woken in any order; a restore into too little room would strand one."""
    dice = random.Random(RUNS)
    # The reserve covers a program that begins between the reading of the room and the restore.
    rig = ParkingRig(cuda, record, 4 * SIZE, SETTINGS, reserve=SIZE)

    async def body() -> None:
        for _ in range(RUNS):
            await _random_run(rig, dice)
            assert rig.none_stranded()
        found = rig.parking.reading()
        assert min(found.parks, found.wakes) >= RUNS, "most runs park and wake"

    rig.run(body)


async def _random_run(rig: ParkingRig, dice: random.Random) -> None:
    for _ in range(12):
        rig.read()
        held = [one for one in rig.living() if rig.stage(one) == "held"]
        away = [one for one in rig.living() if rig.stage(one) != "held"]
        free = rig.total - sum(one.gpu_bytes for one in held)
        choice = dice.random()
        # A program takes memory only where there is some, and not while a restore takes it: else it would fail itself.
        if choice < 0.45 and len(held) + len(away) < 8 and free >= SIZE and not _restoring(rig):
            started(rig.cuda, 1, SIZE)
        elif choice < 0.5 and held:
            dice.choice(held).end()
        elif choice < 0.8 and held:
            rig.parking.orders.park(str(dice.choice(held).pid), None)
        elif away:
            rig.parking.orders.wake(str(dice.choice(away).pid), None)
        rig.read()
        await asyncio.sleep(dice.uniform(0, 0.1))
    for one in rig.living():
        if rig.stage(one) == "held" and dice.random() < 0.5:
            one.end()
    await rig.until(lambda: _all_back(rig), "all are back that fit")


def _restoring(rig: ParkingRig) -> bool:
    return any(one.stage == "waking" for one in rig.parking.reading().programs)


def _all_back(rig: ParkingRig) -> bool:
    """Asks for all, also for those whose parking ends only now."""
    rows = rig.parking.reading().programs
    for one in rows:
        if one.stage == "parked":
            rig.parking.orders.wake(str(one.pids[0]), None)
    return all("is free" in one.waits or "first" in one.waits for one in rows)


def test_an_order_is_for_the_processes_that_it_named() -> None:
    """A program of the same job, or with the same pid, that begins after them is not parked for it."""
    held = ResidentPrograms(0.0, movable=True)
    first, second = (
        Program("session:10@0", (GpuUser(10, ProcessKey(10, ticks), "session:10@0", ()),)) for ticks in (1, 2)
    )

    def see(program: Program) -> bool:
        held.see([program], (), frozenset(), frozenset(), frozenset(), 1.0, {})
        return held[program.key].asked

    assert not see(first)
    held[first.key].asked = True
    assert see(first)
    assert not see(second)


class SleepServer:
    """A model server with vLLM's calls. `calls` are the paths that were asked, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        calls = self.calls

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                calls.append(self.path)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_a_model_server_is_asked_to_sleep_before_it_is_parked_and_to_wake_after(cuda: FakeCuda, record: Path) -> None:
    """Also where it cannot be parked: it must not stay asleep."""
    (program,) = started(cuda)
    server = SleepServer()
    rule = ProgramRule("vllm", user="root", sleep_url=f"{server.url}/sleep?level=1", wake_url=f"{server.url}/wake_up")
    rig = ParkingRig(cuda, record, 4 * SIZE, SETTINGS, rules=[rule])

    async def body() -> None:
        rig.read()
        assert rig.parking.orders.park(str(program.pid), None).keys
        await rig.until(lambda: rig.stage(program) == "parked", "it is parked")
        assert server.calls == ["/sleep?level=1"]
        rig.parking.orders.wake(str(program.pid), None)
        await rig.until(lambda: len(server.calls) == 2, "it is asked to go on")
        assert (server.calls[1], program.state) == ("/wake_up", State.RUNNING)
        cuda.say("fail checkpoint 801")
        rig.read()
        assert rig.parking.orders.park(str(program.pid), None).keys
        await rig.until(lambda: len(server.calls) == 4, "it is asked to sleep, and to go on")
        assert server.calls[2:] == ["/sleep?level=1", "/wake_up"]

    try:
        rig.run(body)
    finally:
        server.close()


class ShortHost(ThisHost):
    """Others take its memory while a program is parked."""

    def __init__(self) -> None:
        self.is_short = False

    def host_memory(self) -> HostMemory:
        return HostMemory(1 << 40, 0 if self.is_short else 1 << 39)


def test_a_park_is_undone_if_too_little_host_memory_is_left(cuda: FakeCuda, record: Path) -> None:
    (program,) = started(cuda)
    program.move_at(SLOW)
    host = ShortHost()
    rig = ParkingRig(cuda, record, 4 * SIZE, SETTINGS, host=host)

    async def body() -> None:
        rig.read()
        assert rig.parking.orders.park(str(program.pid), None).keys
        await rig.until(lambda: program.is_asked, "it is on its way")
        host.is_short = True
        await rig.until(lambda: [one.kind for one in rig.parking.reading().events][-1:] == ["woken"], "it is back")
        assert [one.kind for one in rig.parking.reading().events] == ["parked", "refused", "woken"]
        assert rig.parking.reading().refusals == {"host_memory": 1}

    rig.run(body)
    assert program.gpu_bytes == SIZE


class FailingRig(ParkingRig):
    """Its first move ends in an error of the agent's own."""

    failed = False

    async def _end_turns(self, key: str) -> None:
        if not self.failed:
            self.failed = True
            raise RuntimeError("an unexpected error")


def test_a_move_that_ends_in_an_error_is_in_the_way_of_no_other(cuda: FakeCuda, record: Path) -> None:
    one, two = started(cuda, 2)
    rig = FailingRig(cuda, record, 4 * SIZE, SETTINGS)

    async def body() -> None:
        rig.read()
        assert rig.parking.orders.park(str(one.pid), None).keys
        await rig.until(lambda: rig.failed and rig.stage(one) == "held", "it takes part as before")
        for program in (two, one):
            rig.read()
            assert rig.parking.orders.park(str(program.pid), None).keys
            await rig.until(lambda: rig.stage(program) == "parked", "it is parked")  # noqa: B023 - awaited here

    rig.run(body)
