"""Arbitrary nodes: processes of every kind of job, on any GPUs, some of which the agent cannot see."""

from hypothesis import strategies as st

from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import ProcessContext
from scheduler.programs.node import BARE, Node, Proc, docker, kubernetes, rootless, slurm, unit

GPUS = 6
CGROUPS = (
    BARE,
    docker(1),
    docker(2),
    kubernetes(1, 3),
    kubernetes(1, 4),
    slurm(7),
    unit("hub.service"),
    rootless(1000, 1),
    rootless(1001, 1),
)
CONTEXTS = st.none() | st.builds(
    ProcessContext,
    command_line=st.sampled_from([(), ("python3", "-u", "/home/a/train.py"), ("a\n\x1b[31m" * 40, "x")]),
    scope=st.sampled_from([None, "session-4.scope", "tmux-1.scope"]),
    session_id=st.sampled_from([None, 0, 812]),
)


def processes(pid: int) -> st.SearchStrategy[Proc]:
    return st.builds(
        Proc,
        pid=st.just(pid),
        cgroup=st.sampled_from(CGROUPS),
        uid=st.sampled_from([0, 1000, 1001, 4242]),
        name=st.sampled_from(["python3", "Xorg", "nvidia-cuda-mps", "\x1b]0;x\x07", ""]),
        gpus=st.sets(st.integers(0, GPUS - 1), min_size=1, max_size=3).map(lambda found: tuple(sorted(found))),
        kind=st.sampled_from(["compute", "compute", "graphics", "compute+graphics", "mps", "compute+mps"]),
        memory=st.none() | st.integers(0, 1 << 33),
        sm=st.none() | st.integers(0, 100),
        start_ticks=st.integers(1, 5),
        unseen=st.sampled_from([None, None, None, *(Reason.PID_NAMESPACE, Reason.PROCESS_GONE)]),
        context=CONTEXTS,
    )


NODES = (
    st.lists(st.integers(2, 400), unique=True, max_size=8)
    .flatmap(lambda pids: st.tuples(*map(processes, pids)))
    .map(lambda found: Node(found, gpus=GPUS))
)
