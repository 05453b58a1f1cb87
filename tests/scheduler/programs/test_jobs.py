"""From readings to programs: jobs, names, memory and activity."""

import re

import pytest
from hypothesis import given

from attribution.builders import GIB, container, gpu, gpu_process, identity, mig_instance, pod, reading, table
from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import ProcessContext, ProcessKey
from gpucommons.model.snapshot import Readings
from gpucommons.owners.attribute import Attributor
from gpucommons.owners.workload import Surroundings
from gpucommons.scheduler.programs.jobs import ProgramActivity, group, read_programs
from scheduler.programs.node import (
    BARE,
    Node,
    Proc,
    docker,
    kubernetes,
    pod_uid,
    program_of,
    programs_of,
    rootless,
    slurm,
    unit,
    user_of,
)
from scheduler.programs.strategies import NODES


@given(NODES)
def test_every_process_on_a_gpu_is_in_exactly_one_program(node: Node) -> None:
    programs = node.programs()
    rows = [(p.pid, use.device) for program in programs for p in program.processes for use in p.uses]
    assert sorted(rows) == sorted((p.pid, f"GPU-{index}") for p in node.processes for index in p.gpus)
    assert len({program.key for program in programs}) == len(programs)


@given(NODES)
def test_programs_do_not_depend_on_the_order_of_processes(node: Node) -> None:
    backwards = Node(tuple(reversed(node.processes)), gpus=node.gpus)
    assert node.programs() == backwards.programs()


@given(NODES)
def test_no_program_holds_processes_of_two_users_unless_a_container_does(node: Node) -> None:
    for program in node.programs():
        uids = {process.workload.uid for process in program.processes}
        assert len(uids) == 1 or (program.key.startswith("container:") and "@" not in program.key)


@given(NODES)
def test_names_are_printable_bounded_and_say_something(node: Node) -> None:
    for program in node.programs():
        name = program.display_name
        assert name.isprintable()
        assert program.key.isprintable()
        assert len(name) < 200
        assert " · " in name
        assert re.search(rf"\(pid {program.first.pid}( and [1-9][0-9]* more)?\)$", name)
        assert "none" not in name.lower()


@given(NODES)
def test_memory_of_a_program_is_the_sum_of_its_processes_or_unknown(node: Node) -> None:
    memory = {p.pid: p.memory for p in node.processes}
    for program in node.programs():
        for device, use in program.uses.items():
            parts = [memory[p.pid] for p in program.processes if device in {one.device for one in p.uses}]
            known = [part for part in parts if part is not None]
            assert use.memory_bytes == (sum(known) if len(known) == len(parts) else None)


@pytest.mark.parametrize(
    ("cgroup", "key"),
    [
        (docker(1), f"container:{1:064x}"),
        (kubernetes(5, 6), f"container:{6:064x}"),
        (f"0::/kubepods/pod{pod_uid(5)}", f"pod:{pod_uid(5)}"),
        (slurm(88), "job:88@1000"),
        (unit("ollama.service"), "unit:ollama.service@1000"),
        (rootless(1000, 1), f"container:{1:064x}@1000"),
        (BARE, "process:4711.100"),
    ],
)
def test_what_identifies_a_job(cgroup: str, key: str) -> None:
    assert program_of(Proc(4711, cgroup)).key == key


@pytest.mark.parametrize(
    ("context", "key"),
    [
        (ProcessContext(scope="session-4.scope", session_id=812), "scope:session-4.scope@1000"),
        (ProcessContext(session_id=812), "session:812@1000"),
        (ProcessContext(session_id=0), "process:4711.100"),
    ],
)
def test_what_identifies_a_job_without_a_container(context: ProcessContext, key: str) -> None:
    assert program_of(Proc(4711, context=context)).key == key
    assert program_of(Proc(4711, docker(1), context=context)).key == f"container:{1:064x}"


def test_commands_of_two_leases_are_two_programs_in_one_session() -> None:
    clients = {"1": ProcessKey(20, 100), "2": ProcessKey(21, 100)}
    contexts = [ProcessContext(scope="session-4.scope", session_id=812, ancestors=(each,)) for each in clients.values()]
    first, second = contexts
    processes = (Proc(30, context=first), Proc(31, context=first), Proc(32, context=second))
    programs = programs_of(*processes, lease_clients=clients)
    assert {program.key: [each.pid for each in program.processes] for program in programs} == {
        "lease:1@1000": [30, 31],
        "lease:2@1000": [32],
    }
    assert program_of(*processes).key == "scope:session-4.scope@1000", "without leases"


@pytest.mark.parametrize("cgroup", [docker(1), kubernetes(5, 6), slurm(88), unit("hub.service"), rootless(1000, 1)])
def test_processes_of_one_job_are_one_program_on_all_of_its_gpus(cgroup: str) -> None:
    program = program_of(Proc(10, cgroup, gpus=(0, 1)), Proc(11, cgroup, gpus=(1,)), Proc(12, cgroup, gpus=(2,)))
    first, second, third = ProcessKey(10, 100), ProcessKey(11, 100), ProcessKey(12, 100)
    assert program.processes_on == {"GPU-0": (first,), "GPU-1": (first, second), "GPU-2": (third,)}
    assert program.process_keys == {first, second, third}
    assert program.uses["GPU-1"].memory_bytes == 2 * GIB
    assert program.display_name == f"{program._owner_name()} · python3 (pid 10 and 2 more)"


def test_containers_of_one_pod_are_programs_of_their_own() -> None:
    assert len(programs_of(Proc(10, kubernetes(1, 2)), Proc(11, kubernetes(1, 3)))) == 2


def test_containers_of_one_slurm_job_are_one_program() -> None:
    inside = "0::/system.slice/slurmstepd.scope/job_7/step_0/docker-"
    program = program_of(Proc(10, f"{inside}{1:064x}.scope"), Proc(11, f"{inside}{2:064x}.scope"))
    assert program.key == "job:7@1000"


def test_a_unit_with_notebooks_of_several_users_is_a_program_for_each() -> None:
    hub = unit("jupyterhub.service")
    assert len(programs_of(Proc(10, hub, uid=1000), Proc(11, hub, uid=1001), Proc(12, hub, uid=1001))) == 2


def test_a_container_is_one_program_whatever_users_it_runs_as() -> None:
    program = program_of(Proc(10, docker(1), uid=0), Proc(11, docker(1), uid=33))
    assert program.uid is None


def test_a_user_cannot_enter_the_container_of_another_by_naming_a_cgroup_after_it() -> None:
    victim, forger = Proc(10, docker(1), uid=1000), Proc(11, rootless(1001, 1), uid=1001)
    programs = programs_of(victim, forger, containers=[container(f"{1:064x}", **{"gpucommons.share": "no"})])
    assert {program.key: program.user for program in programs} == {
        f"container:{1:064x}": "alice",
        f"container:{1:064x}@1001": "bob",
    }
    by_user = {program.user: program.first.labels for program in programs}
    assert by_user["alice"]
    assert not by_user["bob"]


def test_a_reused_pid_is_another_program() -> None:
    assert program_of(Proc(10, start_ticks=1)).key != program_of(Proc(10, start_ticks=2)).key


def test_a_reused_session_id_is_another_program_and_the_next_process_of_a_session_is_not() -> None:
    context = ProcessContext(session_id=10)
    first, reused, follows = (
        program_of(Proc(pid, start_ticks=ticks, context=context)) for pid, ticks in ((10, 1), (10, 2), (11, 3))
    )
    assert first.key == reused.key == follows.key
    assert reused.has_reused_pid_of(first)
    assert not follows.has_reused_pid_of(first)
    assert not first.has_reused_pid_of(first)


@pytest.mark.parametrize(
    ("process", "name"),
    [
        (
            Proc(4711, context=ProcessContext(("python3", "/home/alice/train.py", "--lr", "1"))),
            "alice · train.py (pid 4711)",
        ),
        (Proc(4711), "alice · python3 (pid 4711)"),
        (Proc(4711, uid=4242), "uid 4242 · python3 (pid 4711)"),
        (Proc(4711, slurm(7), uid=1001), "bob · python3 (pid 4711)"),
        (Proc(4711, slurm(7), uid=4242), "job 7 · python3 (pid 4711)"),
        (Proc(4711, unit("ollama.service"), uid=998, name="ollama"), "ollama · ollama (pid 4711)"),
        (Proc(4711, name="a\x1b[2Jb"), "alice · a\\x1b[2Jb (pid 4711)"),
        (Proc(4711, name=""), "alice · unknown command (pid 4711)"),
        (Proc(4711, unseen=Reason.PID_NAMESPACE), "unknown owner · unknown command (pid 4711)"),
    ],
)
def test_names(process: Proc, name: str) -> None:
    assert program_of(process).display_name == name


def test_a_pod_is_named_with_its_namespace() -> None:
    program = program_of(Proc(5, kubernetes(1, 2), uid=0), pods=[pod(pod_uid(1), "train-0", "ml")])
    assert program.display_name == "ml/train-0 · python3 (pid 5)"
    assert program.user == "", "uid 0 in a pod is not the host's root"


def test_a_label_names_the_owner_of_a_container() -> None:
    labelled = container(f"{1:064x}", **{"gpucommons.owner": "alice"})
    program = program_of(Proc(5, docker(1), uid=0), containers=[labelled])
    assert (program.user, program.uid, program.first.groups) == ("alice", 0, frozenset({"vision", "lab"}))


def test_the_command_of_most_processes_names_the_program() -> None:
    main, *ranks = (
        Proc(pid, slurm(1), context=ProcessContext(("python3", f"{name}.py")))
        for pid, name in ((10, "launch"), (11, "train"), (12, "train"))
    )
    assert program_of(main, *ranks).display_name == "alice · train.py (pid 10 and 2 more)"


@pytest.mark.parametrize(
    ("processes", "percent", "expected"),
    [
        ([Proc(1, sm=1)], 50, [ProgramActivity.ACTIVE]),
        ([Proc(1, sm=0)], 50, [ProgramActivity.IDLE]),
        # No sample while the GPU is busy: it may be the one.
        ([Proc(1, sm=None)], 50, [ProgramActivity.UNKNOWN]),
        ([Proc(1, sm=None)], None, [ProgramActivity.UNKNOWN]),
        ([Proc(1, sm=None)], 0, [ProgramActivity.IDLE]),
        # The driver samples every process that ever used the GPU.
        ([Proc(1, sm=None), Proc(2, sm=50)], 50, [ProgramActivity.IDLE, ProgramActivity.ACTIVE]),
        # Clients of MPS are sampled as their server.
        ([Proc(1, sm=None, kind="compute+mps"), Proc(2, sm=50)], 50, [ProgramActivity.UNKNOWN, ProgramActivity.ACTIVE]),
    ],
)
def test_whether_a_process_used_the_gpu(
    processes: list[Proc], percent: int | None, expected: list[ProgramActivity]
) -> None:
    assert [program.activity for program in programs_of(*processes, percent=percent)] == expected


def test_a_program_is_idle_only_if_each_of_its_processes_is() -> None:
    idle, active = Proc(1, docker(1), sm=0), Proc(2, docker(1), sm=3)
    unknown = Proc(3, docker(1), sm=None, gpus=(1,))
    assert program_of(idle).activity is ProgramActivity.IDLE
    assert program_of(idle, active).activity is ProgramActivity.ACTIVE
    assert program_of(idle, unknown).activity is ProgramActivity.UNKNOWN
    assert program_of(idle, active, unknown).activity is ProgramActivity.ACTIVE


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(0.0, ProgramActivity.IDLE), (0.4, ProgramActivity.UNKNOWN), (None, ProgramActivity.UNKNOWN)],
)
def test_a_mig_device_is_the_device_and_its_activity_counts(ratio: float | None, expected: ProgramActivity) -> None:
    mig = {0: (mig_instance(1, 3, 0.9), mig_instance(2, 3, ratio))}
    program = program_of(Proc(1, instance=2, sm=None), mig=mig, percent=None)
    assert program.devices == ("MIG-0-2",)
    assert program.activity is expected


def test_a_sample_of_the_last_process_with_the_same_pid_is_not_believed() -> None:
    attributor, around = Attributor(), Surroundings()
    for start_ticks, expected in (
        (100, ProgramActivity.ACTIVE),
        (200, ProgramActivity.UNKNOWN),
        (200, ProgramActivity.ACTIVE),
    ):
        gpus = reading(gpu(0, [gpu_process(7, sm_percent=40, start_ticks=start_ticks)]))
        attribution = attributor.attribute(gpus, table(identity(7, start_ticks=start_ticks)), around)
        found = read_programs(Readings(gpus=gpus, attribution=attribution), 0.0)
        assert found is not None
        assert [program.activity for program in group(found.processes)] == [expected]


def test_a_gpu_whose_processes_cannot_be_listed_is_named() -> None:
    found = Node([Proc(1, gpus=(1,))], gpus=2, unlisted=(0,)).read(12.5)
    assert (found.unlisted, found.as_of_s) == (frozenset({"GPU-0"}), 12.5)
    assert [process.pid for process in found.processes] == [1]


def test_nothing_is_known_without_readings() -> None:
    readings = Node([Proc(1)]).readings()
    assert read_programs(Readings(), 0.0) is None
    assert read_programs(Readings(gpus=readings.gpus), 0.0) is None


def test_groups_are_those_of_the_user() -> None:
    assert user_of(Proc(1)).groups == {"vision", "lab"}
    assert user_of(Proc(1, uid=998)).groups == frozenset()
