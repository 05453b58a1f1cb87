"""An owner that keeps starting programs, with real processes under a whole agent: the steady owner keeps its share.

A fake program computes from its first millisecond on, without a context to create. On a busy machine the agent reads
later, and programs run longer before they are seen: one of some windows must show the share, as a part of what all
programs did.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fakes.shared_gpu import MATMUL, SharedProgram
from shared_node import SharedNode, shared_node
from waiting import until

pytestmark = pytest.mark.long

STEADY, CHURNING = 20010, 20011
SETTLE_S, MEASURED_S, WINDOWS = 10.0, 12.0, 3
SHARE = 0.45
LOOP = MATMUL[8192]
SECTIONS = "[leases]\nshare_limit = 32\n"

Start = Callable[[], SharedProgram]
# Makes a cgroup of this path below the root of the hierarchy, and returns a command that enters it.
Enter = Callable[[str], tuple[str, ...]]


class Churn:
    """A program every so often, each for so long."""

    def __init__(self, start: Start, every_s: float, life_s: float) -> None:
        self._start = start
        self._every_s = every_s
        self._life_s = life_s
        # `gpucommons run` takes longer to start than the next one waits.
        self._starter = ThreadPoolExecutor(16)
        self._starting: list[Future[SharedProgram]] = []
        self._living: list[tuple[float, SharedProgram]] = []

    def go_on(self, seconds: float) -> None:
        end_s = start_s = time.monotonic()
        end_s += seconds
        while (now_s := time.monotonic()) < end_s:
            self._end_old(now_s)
            if now_s >= start_s:
                self._starting.append(self._starter.submit(self._start))
                start_s = max(now_s, start_s + self._every_s)
            time.sleep(0.02)

    def _end_old(self, now_s: float) -> None:
        for started in [one for one in self._starting if one.done()]:
            self._starting.remove(started)
            self._living.append((now_s + self._life_s, started.result()))
        while self._living and self._living[0][0] <= now_s:
            self._living.pop(0)[1].end()

    def end(self) -> None:
        self._starter.shutdown()
        self._end_old(time.monotonic())
        while self._living:
            self._living.pop()[1].end()


def assert_keeps_its_share(
    node: SharedNode, steady: SharedProgram, start: Start, every_s: float, life_s: float
) -> None:
    churn = Churn(start, every_s, life_s)
    seen = []
    try:
        churn.go_on(SETTLE_S)
        for _ in range(WINDOWS):
            before = node.shared.works()
            churn.go_on(MEASURED_S)
            now = node.shared.works()
            done_s = sum(work.progress_s for work in now.by_job) - sum(work.progress_s for work in before.by_job)
            steady_s = now.by_job[steady.job].progress_s - before.by_job[steady.job].progress_s
            over_s = now.now_s - before.now_s
            assert done_s - steady_s > 0.1 * over_s, "the other owner computes"
            parts = f"{steady_s / done_s:.2f} of the work, {steady_s / over_s:.2f} of the time"
            seen.append(f"{parts}, {node.way()} ({node.reason()})")
            if steady_s >= SHARE * done_s:
                return
    finally:
        churn.end()
    pytest.fail(f"every {every_s:g} s, each for {life_s:g} s: {seen}")


# Two programs of the other owner at any time, four and eight.
@pytest.mark.parametrize(("every_s", "life_s"), [(0.5, 1.0), (1.0, 4.0), (0.5, 4.0)])
def test_an_owner_that_keeps_starting_programs_does_not_starve_another(every_s: float, life_s: float) -> None:
    with shared_node() as node:
        steady = node.program(LOOP, uid=STEADY)
        node.start_agent()
        node.wait_for(lambda: node.standing(steady), "it takes part")
        assert_keeps_its_share(node, steady, lambda: node.program(LOOP, uid=CHURNING), every_s, life_s)


@contextmanager
def cgroups() -> Iterator[Enter]:
    mount = Path("/sys/fs/cgroup")
    root = mount if (mount / "cgroup.procs").exists() else mount / "systemd"
    if not os.access(root / "cgroup.procs", os.W_OK):
        pytest.skip(f"needs cgroups that can be made in {root}")
    made: list[Path] = []

    def enter(path: str) -> tuple[str, ...]:
        group = root / path
        made.extend(one for one in (group, *group.parents) if root in one.parents and not one.exists())
        group.mkdir(parents=True, exist_ok=True)
        return ("setsid", "sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")

    try:
        yield enter
    finally:
        for group in sorted(set(made), key=lambda one: len(one.parts), reverse=True):
            until(lambda group=group: not (group / "cgroup.procs").read_text(), f"{group} is empty")  # type: ignore[misc]
            with suppress(OSError):
                group.rmdir()


AS_USER = ("setpriv", "--reuid", str(CHURNING), "--clear-groups")
SLICE = f"user.slice/user-{CHURNING}.slice"


def in_a_container(node: SharedNode, enter: Enter) -> Start:
    """Further processes of one container that its engine has named."""
    prefix = enter(f"docker/{secrets.token_hex(32)}")
    return lambda: node.shared.program(LOOP, prefix=prefix)


def in_claimed_containers(node: SharedNode, enter: Enter) -> Start:
    """Each in a cgroup that its user has named like a container."""
    manager = f"{SLICE}/user@{CHURNING}.service"
    return lambda: node.shared.program(LOOP, prefix=(*enter(f"{manager}/{secrets.token_hex(32)}"), *AS_USER))


def in_a_login(node: SharedNode, enter: Enter) -> Start:
    prefix = (*enter(f"{SLICE}/session-4.scope"), *AS_USER)
    return lambda: node.shared.program(LOOP, prefix=prefix)


def with_leases(node: SharedNode, enter: Enter) -> Start:
    """Root's, by `gpucommons run --share`."""
    return lambda: node.leased(lease_socket(node), LOOP, 1 << 28)


def lease_socket(node: SharedNode) -> Path:
    return node.socket.with_name("leases.sock")


@pytest.mark.parametrize("kind", [in_a_container, in_claimed_containers, in_a_login, with_leases])
def test_whatever_its_programs_are_started_in(kind: Callable[[SharedNode, Enter], Start]) -> None:
    with cgroups() as enter, shared_node() as node:
        steady = node.program(LOOP, uid=STEADY)
        node.start_agent(sections=SECTIONS, environment={"GPUCOMMONS_LEASES_SOCKET": str(lease_socket(node))})
        node.wait_for(lambda: node.standing(steady), "it takes part")
        start = kind(node, enter)
        for every_s in (1.0, 0.5):
            assert_keeps_its_share(node, steady, start, every_s, life_s=4.0)
