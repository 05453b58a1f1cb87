"""A pauser that hangs or dies, as the agent's child and as a service: nothing stays paused.

Real processes and the fake driver. The longest pause is ten minutes here: it resumes nothing.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fakes.cuda.control import FakeCuda, FakeProgram
from gpucommons.pauser.client import Pauser, PauserSettings
from gpucommons.pauser.protocol import Operation, PauserRequest
from gpucommons.pauser.record import PauseRecord
from gpucommons.pauser.release import state_letter
from pauser.rig import child, kill_with_watchdog, pausing, service, settings, watchdog_of
from tiers import in_long_tier
from waiting import LoadMeter, until

log = logging.getLogger(__name__)

# The promise, on a machine that does nothing else. A busy one delays the work that is needed until programs run again:
# at most the start of an interpreter. `pytest -rP` prints what each test measured.
PROMISED_S = 5.0
RECOVERY_CPU_S = 0.5
GIVEN_UP_S = 60.0
MAX_PAUSE_S = 600.0


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def kill_all(pid: int) -> None:
    """As the kernel does where it kills a whole cgroup for its memory."""
    watchdog = until(lambda: watchdog_of(pid), "the watchdog has started")
    os.kill(watchdog, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)


def kill_for_memory(pid: int) -> None:
    """By the kernel, because the memory of its cgroup is used up. Others in the cgroup use it: it has used most."""
    with memory_cgroup(_CGROUP_BYTES) as cgroup:
        (cgroup / "cgroup.procs").write_text(str(pid))
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
        # Two of them: each uses less than the pauser counts for.
        hogs = [subprocess.Popen([sys.executable, "-c", _HOG, str(cgroup / "cgroup.procs")]) for _ in range(2)]
        try:
            until(lambda: state_letter(pid) in ("", "Z"), "the kernel has killed the pauser")
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()
            until(lambda: state_letter(pid) in ("", "Z"), "it has left the cgroup")


_CGROUP_BYTES = 96 << 20
_HOG = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
kept = []
for _ in range(1000):
    kept.append(b"x" * (1 << 20))
    time.sleep(0.005)
"""


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """A cgroup (v1) whose memory is limited."""
    cgroup = Path(f"/sys/fs/cgroup/memory/gpucommons-test-{os.getpid()}")
    try:
        cgroup.mkdir()
        (cgroup / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError as error:
        with suppress(OSError):
            cgroup.rmdir()
        pytest.skip(f"no memory cgroup (v1) can be made here: {error}")
    try:
        yield cgroup
    finally:
        until(lambda: not (cgroup / "cgroup.procs").read_text().strip(), "the cgroup is empty")
        cgroup.rmdir()


def stop_all(pid: int) -> None:
    watchdog = until(lambda: watchdog_of(pid), "the watchdog has started")
    os.kill(watchdog, signal.SIGSTOP)
    os.kill(pid, signal.SIGSTOP)


def all_run_in_time(programs: list[FakeProgram], load: LoadMeter, cpu_s: float = RECOVERY_CPU_S) -> None:
    """`load` was entered when the fault had come."""
    for program in programs:
        program.runs(GIVEN_UP_S)
    paused_s, bound_s = load.elapsed_s, PROMISED_S + load.delay_s(cpu_s)
    log.warning("paused for %.2f s; at most %.2f s on a machine of this load", paused_s, bound_s)
    assert paused_s < bound_s


async def pause(pauser: Pauser, programs: list[FakeProgram]) -> None:
    for program in programs:
        reply = await pauser.lock(program.key, timeout_ms=10_000)
        assert reply.failure is None, reply.failure


@pytest.mark.long
@pytest.mark.parametrize("fault", [stop, kill, kill_all, kill_for_memory])
def test_a_child_of_the_agent(cuda: FakeCuda, record: Path, fault: Callable[[int], None]) -> None:
    programs = [cuda.start() for _ in range(2)]

    async def whole() -> None:
        pauser = Pauser(settings(cuda, record, MAX_PAUSE_S))
        await pauser.start()
        assert await pauser.wait_available(30)
        await pause(pauser, programs)
        pid = pauser.pid
        assert pid is not None
        await asyncio.to_thread(until, lambda: watchdog_of(pid), "the watchdog has started")
        fault(pid)
        with LoadMeter() as load:
            await asyncio.to_thread(all_run_in_time, programs, load)
        await asyncio.to_thread(until, lambda: pauser.pid not in (None, pid), "another has been started")
        assert pauser.counters.longest_pause_s > 0.0, "the pauses ended with its successor's hello, not with its loss"
        await pauser.stop()

    asyncio.run(whole())


@pytest.mark.parametrize("fault", [stop, kill, *in_long_tier(kill_all, kill_for_memory)])
def test_a_service(cuda: FakeCuda, record: Path, tmp_path: Path, fault: Callable[[int], None]) -> None:
    programs, path = [cuda.start() for _ in range(2)], tmp_path / "run" / "pauser.sock"

    async def whole() -> None:
        pauser = Pauser(PauserSettings(socket_path=path))
        await pauser.start()
        with service(cuda, record, path, "--max-pause-s", str(MAX_PAUSE_S)) as first:
            assert await pauser.wait_available(30)
            await pause(pauser, programs)
            await asyncio.to_thread(until, lambda: watchdog_of(first.pid), "the watchdog has started")
            fault(first.pid)
            with LoadMeter() as load:
                if fault in (stop, kill):
                    await asyncio.to_thread(all_run_in_time, programs, load)
                # A pauser that is only stopped is killed by its watchdog: then systemd, or Kubernetes, starts another.
                await asyncio.to_thread(first.wait, GIVEN_UP_S)
                with service(cuda, record, path, "--max-pause-s", str(MAX_PAUSE_S)):
                    # On a busy machine the kernel may kill a watchdog for its memory, too, that has just been started.
                    if fault not in (stop, kill):
                        await asyncio.to_thread(all_run_in_time, programs, load)
                    assert await pauser.wait_available(30)
                    await pauser.stop()

    asyncio.run(whole())


@pytest.mark.parametrize("as_service", [False, *in_long_tier(True)])
def test_a_call_that_hangs(cuda: FakeCuda, record: Path, tmp_path: Path, as_service: bool) -> None:
    """Programs that are paused meanwhile are resumed as the agent asks for it."""
    *programs, hung = [cuda.start() for _ in range(3)]
    path = tmp_path / "run" / "pauser.sock"

    async def whole(given: PauserSettings) -> None:
        async with pausing(given) as pauser:
            await pause(pauser, programs)
            cuda.say(f"hang lock {hung.pid}")
            with LoadMeter() as load:
                assert (await pauser.lock(hung.key, timeout_ms=100)).failure is not None
                for program in programs:
                    assert (await pauser.unlock(program.key)).failure is None
                await asyncio.to_thread(all_run_in_time, programs, load)
            cuda.unsay("hang")
            await asyncio.to_thread(hung.runs)

    if as_service:
        with service(cuda, record, path, "--max-pause-s", str(MAX_PAUSE_S)):
            asyncio.run(whole(PauserSettings(socket_path=path)))
    else:
        asyncio.run(whole(settings(cuda, record, MAX_PAUSE_S)))


@pytest.mark.long
def test_the_agent_replaces_a_child_that_hangs_with_its_watchdog(cuda: FakeCuda, record: Path) -> None:
    """Both are stopped, for example by the freezer of their service: the agent notices that no answer comes."""
    programs = [cuda.start() for _ in range(2)]

    async def whole() -> None:
        pauser = Pauser(settings(cuda, record, MAX_PAUSE_S))
        await pauser.start()
        assert await pauser.wait_available(30)
        await pause(pauser, programs[:1])
        pid = pauser.pid
        assert pid is not None
        await asyncio.to_thread(stop_all, pid)
        with LoadMeter() as load:
            watchdog = watchdog_of(pid)
            assert watchdog is not None
            assert (await pauser.lock(programs[1].key, timeout_ms=100)).failure is not None
            # An interpreter ends, and two start.
            await asyncio.to_thread(all_run_in_time, programs, load, 2 * RECOVERY_CPU_S)
        os.kill(watchdog, signal.SIGKILL)
        await pauser.stop()

    asyncio.run(whole())


@pytest.mark.long
def test_the_longest_pause_is_true_while_the_pauser_is_lost(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()

    async def whole() -> None:
        pauser = Pauser(settings(cuda, record, MAX_PAUSE_S))
        await pauser.start()
        assert await pauser.wait_available(30)
        await pause(pauser, [program])
        assert pauser.pid is not None
        stop(pauser.pid)
        before = pauser.reading().longest_pause_s
        await asyncio.sleep(0.5)
        assert pauser.reading().longest_pause_s >= before + 0.5
        assert pauser.paused == 1, "it is not known that it runs"
        await asyncio.to_thread(until, lambda: pauser.counters.restarts == 1 and pauser.available, "another serves")
        assert pauser.paused == 0
        assert pauser.reading().longest_pause_s == pauser.counters.longest_pause_s > before
        await pauser.stop()

    asyncio.run(whole())


# -- the watchdog itself


@pytest.mark.parametrize("number", [signal.SIGKILL, *in_long_tier(signal.SIGSTOP)])
def test_a_watchdog_that_dies_or_hangs_is_replaced(cuda: FakeCuda, record: Path, number: int) -> None:
    program = cuda.start()
    with child(cuda, record) as (process, agent):
        agent.hello()
        first = until(lambda: watchdog_of(process.pid), "the watchdog has started")
        # One that hangs before it has answered gets longer: it may still load the driver.
        time.sleep(1.0)
        os.kill(first, number)
        second = until(lambda: (found := watchdog_of(process.pid)) != first and found, "another one")
        assert agent.ask(PauserRequest(1, Operation.LOCK, program.key, 5000)).failure is None
        # It works as the first one did.
        until(lambda: state_letter(second) == "S", "it waits")
        stop(process.pid)
        program.runs()


def test_a_watchdog_ends_with_its_pauser(cuda: FakeCuda, record: Path) -> None:
    with child(cuda, record) as (process, agent):
        agent.hello()
        watchdog = until(lambda: watchdog_of(process.pid), "the watchdog has started")
        os.kill(watchdog, signal.SIGTERM)
    until(lambda: state_letter(watchdog) in ("", "Z"), "it has ended")
    assert process.returncode == 0


def test_a_pauser_that_was_only_starved_goes_on(cuda: FakeCuda, record: Path) -> None:
    """It is continued just before its watchdog would act, again and again."""
    program = cuda.start()
    with child(cuda, record) as (process, agent):
        agent.hello()
        until(lambda: watchdog_of(process.pid), "the watchdog has started")
        for number in range(1, 4):
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.6)
            assert agent.ask(PauserRequest(2 * number, Operation.LOCK, program.key, 5000)).failure is None
            assert agent.ask(PauserRequest(2 * number + 1, Operation.UNLOCK, program.key)).failure is None
        assert process.poll() is None


# -- systemd and probes


def test_systemd_and_probes_see_that_it_goes_on(cuda: FakeCuda, record: Path, tmp_path: Path) -> None:
    path, notify = tmp_path / "run" / "pauser.sock", tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(notify))
        systemd.settimeout(30)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NOTIFY_SOCKET", str(notify))
            with service(cuda, record, path) as process:
                assert systemd.recv(100) == b"READY=1"
                assert systemd.recv(100) == b"WATCHDOG=1"
                alive = path.with_name("alive")
                until(alive.exists, "it shows that it goes on")
                before = alive.stat().st_mtime
                until(lambda: alive.stat().st_mtime > before, "it goes on")
                watchdog = until(lambda: watchdog_of(process.pid), "the watchdog has started")
                os.kill(watchdog, signal.SIGSTOP)
                process.send_signal(signal.SIGSTOP)
                time.sleep(0.3)
                silent = alive.stat().st_mtime
                time.sleep(1.0)
                assert alive.stat().st_mtime == silent
                os.kill(watchdog, signal.SIGKILL)


def test_the_probe_of_the_deployment_files(tmp_path: Path) -> None:
    """The same command as in deploy/: find prints the file where it is fresh."""
    alive = tmp_path / "alive"
    probe = ["sh", "-c", f"test -n \"$(find {alive} -newermt '-3 seconds')\""]
    assert subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode != 0
    alive.touch()
    assert subprocess.run(probe, check=False).returncode == 0
    old = time.time() - 10
    os.utime(alive, (old, old))
    assert subprocess.run(probe, check=False).returncode != 0


@pytest.mark.long
def test_what_was_left_by_all_is_resumed_by_the_next(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()
    with child(cuda, record) as (process, agent):
        agent.hello()
        assert agent.ask(PauserRequest(1, Operation.LOCK, program.key, 5000)).failure is None
        kill_with_watchdog(process)
    assert program.stands_still(0.3)
    with child(cuda, record) as (_, agent):
        assert agent.hello().resumed == 1
        program.runs()
    opened = PauseRecord.open_existing(record)
    assert opened is not None
    assert list(opened.entries()) == []
    opened.close()
