"""A program that begins on a full GPU waits until idle programs are parked; with a real agent and its pauser."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from fakes.cuda.control import OUT_OF_MEMORY_STATUS, FakeProgram
from fakes.gpu.account import Phase
from fakes.shared_gpu import MATMUL, SharedGpu, SharedProgram
from gpucommons.pauser.backend import State
from needs import needs_program, needs_root
from open_folder import open_folder
from parking.state import parking_state
from running import command, running_agent
from shared_node import DEVICE_FILES, SharedNode, device_files, kill, shared_node
from users import as_user
from waiting import until

MIB, GIB = 1 << 20, 1 << 30
IDLE = [Phase(None)]
TERMS = "arrival_idle_after_s = 2\nmin_residence_s = 0\n"
WATCHED = "new programs wait for room on nvidia0"
HAS_ROOM = "every GPU has room"
CHURNER = 4712
# ARRIVAL_KILLS=30 takes five minutes.
KILLS = int(os.environ.get("ARRIVAL_KILLS", "6"))


@pytest.fixture
def node() -> Iterator[SharedNode]:
    with shared_node() as made:
        yield made


class FullGpu:
    """A GPU of 200 MiB, most of which idle programs hold."""

    def __init__(
        self,
        node: SharedNode,
        idle: int = 2,
        room: str = "100%",
        sections: str = "",
        settle_s: int = 2,
        memory_bytes: int = 64 * MIB,
    ) -> None:
        self.node = node
        files = device_files(node.run / "dev")
        node.shared.cuda.gpu_has(200 * MIB)
        # Root is known there: it sees the names of all users.
        self._api = f"unix:{node.run}/api.sock"
        parking = f'arrival_room = "{room}"\ndevice_files = "{files}"\n{TERMS}settle_s = {settle_s}\n{sections}'
        self.sections = f'[web]\nsocket = "{self._api}"\n[parking]\n{parking}'
        self._memory_bytes = memory_bytes
        self.idle = [node.program(phases=IDLE, memory_bytes=memory_bytes) for _ in range(idle)]
        for one in self.idle:
            one.program.wait_for_user()
        node.start_agent(sections=self.sections)
        node.shared.cuda.device_files = files

    def wait_until_watched(self) -> None:
        until(lambda: self.would_wait, "newcomers would wait")

    @property
    def would_wait(self) -> bool:
        """Whether new programs wait for room now."""
        watching = [WATCHED in line for line in self.node.agent.lines if WATCHED in line or HAS_ROOM in line]
        return bool(watching) and watching[-1]

    @property
    def parks(self) -> int:
        return sum("parking: parked:" in line for line in self.node.agent.lines)

    def logged(self, *words: str) -> bool:
        return any(all(word in line for word in words) for line in self.node.agent.lines)

    def wait_until_shown(self, order: str, text: str) -> str:
        """What a command of root prints, in one line, once it has this text."""

        def shown() -> str | None:
            done = command(order, "--connect", self._api)
            assert done.returncode == 0, done.stderr
            found = " ".join(done.stdout.split())
            return found if text in found else None

        return until(shown, f"{order} shows {text!r}")

    def spawn(self, memory_bytes: int, prefix: tuple[str, ...] = ()) -> "subprocess.Popen[bytes]":
        """A newcomer; it ends at once if it does not get its memory."""
        return self.node.shared.cuda.spawn(memory_bytes, prefix=("setsid", *prefix))

    def program_of(self, process: "subprocess.Popen[bytes]") -> FakeProgram:
        """Once it has its memory."""
        found = FakeProgram(self.node.shared.cuda.directory, process, process.pid)
        self.node.shared.cuda.programs.append(found)
        return found

    def comes_back(self, one: SharedProgram) -> None:
        one.program.run_cell()
        self.node.wait_for(lambda: one.program.cells > 0, "its cell ends")
        assert one.program.gpu_bytes == self._memory_bytes


def test_a_newcomer_waits_for_room_and_starts(node: SharedNode) -> None:
    gpu = FullGpu(node)
    gpu.wait_until_watched()
    newcomer = node.program(MATMUL[512], memory_bytes=128 * MIB)
    assert newcomer.program.gpu_bytes == 128 * MIB
    assert all(one.program.state is State.CHECKPOINTED for one in gpu.idle)
    node.wait_for(lambda: not newcomer.locked, "it goes on")
    parking = parking_state(node.socket)
    (arrival,) = parking["arrivals"].values()
    assert (arrival["held"], arrival["pid"], arrival["parked_bytes"]) == (False, newcomer.pid, 128 * MIB)
    assert "for room: 0.1 GiB of 2 idle programs was parked" in arrival["sentence"]
    sentences = [row["sentence"] for row in parking["programs"].values()]
    assert [one.partition(" to ")[2] for one in sentences] == [
        "make room for root's program; wakes when it is used"
    ] * 2
    shown = " ".join(command("parked", "--socket", str(node.socket)).stdout.split())
    assert "idle programs was parked" in shown
    for order in ("me", "why"):
        shown = gpu.wait_until_shown(order, "for room: 0.1 GiB of 2 idle programs was parked")
        assert shown.count("to make room for root's program; wakes when it is used") == 2
    node.wait_for(lambda: "program.waited" in node.agent.get("/api/v1/events")[1], "the event")
    events = gpu.wait_until_shown("events", "waited ")
    assert events.count("0.1 GiB moved to host memory to make room for root's program") == 2
    node.wait_for(lambda: "gpucommons_parking_arrivals_total 1" in node.agent.get("/metrics")[1], "the metric")
    newcomer.end()
    for one in gpu.idle:
        gpu.comes_back(one)


def test_a_program_of_the_background_makes_room_while_it_works(node: SharedNode) -> None:
    """It comes back when there is room, and goes on; nothing that it does in between brings it back."""
    gpu = FullGpu(node, idle=0)
    night = node.program(MATMUL[512], memory_bytes=128 * MIB)
    node.wait_for(lambda: node.client(night), "the agent sees it")
    assert not gpu.would_wait
    node.scheduler("set-class", f"pid:{night.pid}", "background")
    gpu.wait_until_watched()
    newcomer = node.program(MATMUL[512], memory_bytes=128 * MIB)
    assert (newcomer.program.gpu_bytes, night.program.state) == (128 * MIB, State.CHECKPOINTED)
    node.wait_for(lambda: parking_state(node.socket)["programs"], "it is shown")
    (parked,) = parking_state(node.socket)["programs"].values()
    why = "to make room for root's program, since it is of class background"
    assert f"{why}; comes back when there is room" in parked["sentence"]
    assert parked["cause"] == "class background"
    node.wait_for(lambda: gpu.logged("goes on after"), "it goes on")
    (arrival,) = parking_state(node.socket)["arrivals"].values()
    assert "for room: 0.1 GiB of root's program was parked" in arrival["sentence"]
    assert gpu.wait_until_shown("events", f"0.1 GiB moved to host memory {why}")
    newcomer.end()
    computed = night.progress()
    node.wait_for(lambda: night.progress() > computed + 0.2, "it goes on")
    assert night.program.gpu_bytes == 128 * MIB


def test_a_program_that_asks_whether_there_is_a_gpu_parks_nothing(node: SharedNode) -> None:
    """It waits for room when it begins to use the GPU, which may be much later."""
    gpu = FullGpu(node, idle=1, memory_bytes=128 * MIB)
    gpu.wait_until_watched()
    prepares = node.run / "prepares"
    prepares.touch()
    node.shared.cuda.prepares = prepares
    asks = gpu.spawn(128 * MIB)
    # What it opened is seen when the next one begins.
    node.shared.cuda.prepares = None
    next_one = gpu.program_of(gpu.spawn(8 * MIB))
    node.wait_for(lambda: gpu.logged("goes on after"), "the next one goes on")
    assert [arrival["pid"] for arrival in parking_state(node.socket)["arrivals"].values()] == [next_one.pid]
    next_one.end()
    since = len(node.agent.lines)
    gpu.comes_back(gpu.idle[0])
    node.wait_for(lambda: any(WATCHED in line for line in node.agent.lines[since:]), "it is idle again")
    prepares.unlink()
    assert gpu.program_of(asks).gpu_bytes == 128 * MIB
    assert gpu.parks == 2


def test_where_there_is_no_room_for_a_context_a_program_waits_before_it(node: SharedNode) -> None:
    total = 1434 * MIB
    node.shared.nvml.say(f"set nvmlDeviceGetMemoryInfo_v2 0 0 {total} 0 0 0")
    node.program(MATMUL[512], memory_bytes=1082 * MIB)
    gpu = FullGpu(node, idle=1, memory_bytes=350 * MIB)
    node.shared.cuda.gpu_has(total)
    gpu.wait_until_watched()
    assert gpu.program_of(gpu.spawn(128 * MIB)).gpu_bytes == 128 * MIB
    assert gpu.parks == 1


@pytest.mark.long
def test_none_at_work_makes_room_for_a_newcomer_of_the_background(node: SharedNode) -> None:
    """Its class is known before a reading lists it: here by a rule."""
    gpu = FullGpu(node, idle=0, sections='[sharing_quotas.night]\ncommand = "program"\nclass = "background"\n')
    night = node.program(MATMUL[512], memory_bytes=128 * MIB)
    gpu.wait_until_watched()
    refused = gpu.spawn(128 * MIB)
    assert refused.wait(60) == OUT_OF_MEMORY_STATUS
    node.wait_for(lambda: gpu.logged("goes on after", "no program is left that could be parked"), "why")
    assert (gpu.parks, night.program.state) == (0, State.RUNNING)


@pytest.mark.long
def test_four_that_arrive_at_once_all_start(node: SharedNode) -> None:
    gpu = FullGpu(node)
    gpu.wait_until_watched()
    processes = [gpu.spawn(40 * MIB) for _ in range(4)]
    programs = [gpu.program_of(process) for process in processes]
    assert all(one.gpu_bytes == 40 * MIB for one in programs)
    for one in programs:
        one.runs()
        one.end()
    for idle in gpu.idle:
        gpu.comes_back(idle)


@pytest.mark.long
def test_programs_that_begin_one_after_another_use_the_same_room(node: SharedNode) -> None:
    """The room of one that has ended is kept for none, however soon the next one begins."""
    gpu = FullGpu(node, room="60%", settle_s=60)
    gpu.wait_until_watched()
    for _ in range(4):
        one = gpu.program_of(gpu.spawn(8 * MIB))
        one.runs()
        one.end()
    assert gpu.parks == 0
    assert sum("goes on after" in line and "it has room" in line for line in node.agent.lines) == 4


@pytest.mark.long
def test_a_user_that_keeps_starting_programs_spends_its_budget(node: SharedNode) -> None:
    """Its programs make others wait to come back; then they get no more room from others, and `parked` says why."""
    needs_root()
    needs_program("setpriv", "setsid")
    gpu = FullGpu(node, sections="arrival_budget_s = 1\n")
    for one in gpu.idle:
        # Two seconds to come back.
        one.program.move_at(32 * MIB)
    gpu.wait_until_watched()
    first = gpu.program_of(gpu.spawn(128 * MIB, prefix=tuple(as_user(CHURNER))))
    first.runs()
    first.end()
    for one in gpu.idle:
        gpu.comes_back(one)
    assert gpu.parks == 2
    until(lambda: gpu.would_wait, "newcomers would wait again")
    refused = gpu.program_of(gpu.spawn(16 * MIB, prefix=tuple(as_user(CHURNER))))
    node.wait_for(lambda: gpu.logged("goes on after", "budget for parking programs of other owners is spent"), "why")
    parked = "0.1 GiB moved to host memory to make room for another user's program"
    assert gpu.wait_until_shown("events", parked).count(parked) == 2
    shown = " ".join(command("parked", "--socket", str(node.socket)).stdout.split())
    assert "started without more room: the budget for parking programs of other owners is spent" in shown
    refused.runs()
    refused.end()
    assert [one.program.state for one in gpu.idle] == [State.RUNNING] * 2
    assert gpu.parks == 2
    own = gpu.program_of(gpu.spawn(128 * MIB))
    assert own.gpu_bytes == 128 * MIB, "programs of one owner make room for each other"


@pytest.mark.long
def test_it_is_held_for_longer_than_a_program_in_turns(node: SharedNode) -> None:
    """The pauser resumes what is paused for max_pause_s, unless the agent asks it to keep that."""
    gpu = FullGpu(node, sections="[scheduler]\nmax_pause_s = 2\n")
    for one in gpu.idle:
        # Four seconds, both at once.
        one.program.move_at(16 * MIB)
    gpu.wait_until_watched()
    newcomer = node.program(MATMUL[512], memory_bytes=128 * MIB)
    assert newcomer.program.gpu_bytes == 128 * MIB


@pytest.mark.long
def test_it_goes_on_as_it_is_after_the_longest_wait(node: SharedNode) -> None:
    gpu = FullGpu(node, sections="arrival_wait_s = 1\n")
    for one in gpu.idle:
        one.program.move_at(4 * MIB)
    gpu.wait_until_watched()
    refused = gpu.spawn(128 * MIB)
    assert refused.wait(60) == OUT_OF_MEMORY_STATUS
    node.wait_for(lambda: gpu.logged("goes on after", "it waited for parking.arrival_wait_s"), "why")


@pytest.mark.long
def test_programs_of_its_own_job_make_no_room(node: SharedNode) -> None:
    """The newcomer and an idle program are of one session; they would have been parked first."""
    sibling = node.program(phases=IDLE, memory_bytes=80 * MIB, session=False)
    sibling.program.wait_for_user()
    gpu = FullGpu(node, idle=1)
    gpu.wait_until_watched()
    newcomer = node.program(MATMUL[512], memory_bytes=100 * MIB, session=False)
    assert newcomer.program.gpu_bytes == 100 * MIB
    assert [one.program.state for one in (sibling, *gpu.idle)] == [State.RUNNING, State.CHECKPOINTED]


@pytest.mark.long
def test_a_program_that_a_rule_leaves_alone_does_not_wait(node: SharedNode) -> None:
    needs_program("setpriv")
    gpu = FullGpu(node, sections=f'[sharing_quotas.apart]\nuid = "{CHURNER}"\nshare = false\n')
    gpu.wait_until_watched()
    gpu.program_of(gpu.spawn(16 * MIB, prefix=tuple(as_user(CHURNER)))).runs()
    assert not gpu.logged("waits for room on its GPU")
    assert gpu.parks == 0
    assert [one.program.state for one in gpu.idle] == [State.RUNNING] * 2


@pytest.mark.long
def test_more_is_parked_as_the_use_of_a_young_program_comes_near_what_is_free(node: SharedNode) -> None:
    """It has begun on a GPU with room, and was not held."""
    gpu = FullGpu(node, room="40%")
    node.wait_for(lambda: all(node.client(one) for one in gpu.idle), "the agent sees the idle ones")
    assert not gpu.would_wait
    # By NVML the GPU has 140 GiB.
    node.shared.cuda.gpu_has(140 * GIB)
    young = node.program(MATMUL[512], memory_bytes=120 * GIB)
    gpu.wait_until_shown("parked", "to make room for root's program; wakes when it is used")
    assert not parking_state(node.socket)["arrivals"]
    young.program.runs()


@pytest.mark.long
def test_without_idle_programs_or_with_room_a_newcomer_is_not_touched(node: SharedNode) -> None:
    """On a GPU with room, and then on one that programs at work fill: it gets CUDA's out-of-memory, as ever."""
    gpu = FullGpu(node, idle=1, room="1Mi")
    node.shared.let_pass(4)
    newcomer = gpu.program_of(gpu.spawn(100 * MIB))
    newcomer.runs()
    assert newcomer.locks == 0
    assert not any(WATCHED in line for line in node.agent.lines)
    newcomer.end()
    node.agent.stop()
    gpu.idle[0].end()
    node.shared.cuda.device_files = None
    node.program(MATMUL[4096], memory_bytes=128 * MIB)
    node.start_agent(sections=gpu.sections.replace('"1Mi"', '"100%"'))
    node.shared.let_pass(5)
    node.shared.cuda.device_files = node.run / "dev"
    refused = gpu.spawn(128 * MIB)
    assert refused.wait(20) == OUT_OF_MEMORY_STATUS
    assert not any(WATCHED in line for line in node.agent.lines)


@pytest.mark.long
def test_a_program_with_device_files_of_its_own_waits_too(node: SharedNode) -> None:
    """As in a container: its files are other ones than the host's, and only process events show them."""
    gpu = FullGpu(node)
    gpu.wait_until_watched()
    files = node.run / "dev"
    own = f"mount -t tmpfs none {files} && cd {files} && touch {' '.join(DEVICE_FILES)} && sleep 1"
    inside = ("unshare", "--mount", "sh", "-c", f'{own} && exec "$0" "$@"')
    newcomer = gpu.program_of(gpu.spawn(128 * MIB, prefix=inside))
    assert newcomer.gpu_bytes == 128 * MIB
    newcomer.runs()


@pytest.mark.long
def test_nothing_stays_held_when_agent_and_pauser_are_killed(node: SharedNode) -> None:
    gpu = FullGpu(node)
    for one in gpu.idle:
        # A second for each.
        one.program.move_at(64 * MIB)
    chance = random.Random(28)
    for _ in range(KILLS):
        gpu.wait_until_watched()
        process = gpu.spawn(16 * MIB)
        time.sleep(chance.uniform(0.0, 1.5))
        kill(node.pauser())
        if chance.random() < 0.5:
            kill(node.agent.process.pid, signal.SIGKILL)
            node.agent.process.wait()
            node.start_agent(sections=gpu.sections)
        newcomer = gpu.program_of(process)
        newcomer.runs()
        node.wait_for(
            lambda: not any(row["held"] for row in parking_state(node.socket)["arrivals"].values()), "none is held"
        )
        newcomer.end()
        for one in gpu.idle:
            one.program.run_cell()
        node.wait_for(lambda: all(one.program.state is State.RUNNING for one in gpu.idle), "the idle ones are back")
        assert [one.program.gpu_bytes for one in gpu.idle] == [64 * MIB] * 2
        node.agent.stop()
        node.start_agent(sections=gpu.sections)


@pytest.mark.long
@pytest.mark.parametrize("loss", ["deleted", "damaged"])
def test_a_parked_program_that_the_record_lost_is_found_again(node: SharedNode, loss: str) -> None:
    """By the next agent, and by `resume --all`: the driver knows what is parked."""
    files = device_files(node.run / "dev")
    node.shared.cuda.device_files = files
    sections = f'[parking]\ndevice_files = "{files}"\n'
    program = node.program(MATMUL[512], memory_bytes=64 * MIB)
    for way in ("resume", "agent"):
        node.start_agent(sections=sections)
        node.wait_for(lambda: node.client(program), "the agent sees it")
        done = command("park", str(program.pid), "--socket", str(node.socket))
        assert done.returncode == 0, done.stdout + done.stderr
        again = command("park", str(program.pid), "--socket", str(node.socket))
        assert (again.returncode, "is already parked" in again.stderr) == (1, True)
        kill(node.agent.process.pid)
        kill(node.pauser())
        node.agent.process.wait()
        entry = node.record / str(program.pid)
        until(entry.exists, "its entry is there")
        if loss == "deleted":
            entry.unlink()
        else:
            entry.write_text("{")
        if way == "resume":
            node.resume_all("--device-files", str(files))
        else:
            node.start_agent(sections=sections)
            node.wait_for(lambda: parking_state(node.socket)["programs"], "it is found")
            done = command("wake", str(program.pid), "--socket", str(node.socket))
            assert done.returncode == 0, done.stdout + done.stderr
        program.program.runs()
        assert program.program.gpu_bytes == 64 * MIB
        until(lambda: not list(node.record.iterdir()), "the record is empty")


@pytest.mark.long
def test_it_works_among_the_programs_of_one_user_without_root() -> None:
    """The user's own agent, with share_programs = own, sees no other user's open files, and no process events."""
    needs_root()
    needs_program("setpriv", "setsid")
    uid = 4711
    with open_folder() as directory, SharedGpu(directory / "gpus") as shared:
        files = device_files(directory / "dev")
        shared.cuda.gpu_has(200 * MIB)
        runtime = directory / "runtime"
        runtime.mkdir(mode=0o700)
        os.chown(runtime, uid, uid)
        idle = shared.program(phases=IDLE, prefix=("setsid", *as_user(uid)), memory_bytes=128 * MIB)
        idle.program.wait_for_user()
        config = directory / "config.toml"
        config.write_text(f'[parking]\narrival_room = "100%"\ndevice_files = "{files}"\n{TERMS}settle_s = 2\n')
        environment = {
            **shared.environment(),
            "RUNTIME_DIRECTORY": "",
            "XDG_RUNTIME_DIR": str(runtime),
            "STATE_DIRECTORY": str(runtime),
            "GPUCOMMONS_LEASES_SOCKET": "",
            "GPUCOMMONS_SCHEDULER_XPUSHARE_SOCKET": "",
        }
        arguments = ("--share", "--config", str(config))
        with running_agent(*arguments, environment=environment, prefix=as_user(uid)) as agent:
            until(lambda: any(WATCHED in line for line in agent.lines), "newcomers would wait")
            shared.cuda.device_files = files
            newcomer = shared.program(MATMUL[512], prefix=("setsid", *as_user(uid)), memory_bytes=128 * MIB)
            assert newcomer.program.gpu_bytes == 128 * MIB
            assert idle.program.state is State.CHECKPOINTED
            newcomer.end()
            idle.program.run_cell()
            until(lambda: idle.program.cells > 0, "its cell ends")
