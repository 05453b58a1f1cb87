"""Decides whether the pids that the driver tells can be found in our procfs, and says plainly why not."""

from gpucommons.attribution.process_status import parse_status
from gpucommons.model.process_identity import PidFacts, PidScope, PidView

# The kernel gives the first pid namespace this number on every machine.
_HOST_NAMESPACE = "pid:[4026531836]"
# pid 2 of the host is this kernel thread; no other pid namespace has kernel threads.
_SECOND_OF_HOST = "kthreadd"


def pid_view(facts: PidFacts) -> PidView:
    if facts.own_status is None:
        return PidView(
            PidScope.NONE,
            f"{facts.procfs} shows no processes: mount the host's /proc and name it with --path.procfs",
        )
    if not _is_hosts(facts):
        return PidView(
            PidScope.NAMESPACE,
            f"{facts.procfs} shows the pids of a container, but the driver tells the host's: run the agent "
            "in the host's pid namespace (hostPID: true, docker run --pid=host), or mount the host's /proc "
            "and name it with --path.procfs",
        )
    if not facts.first_is_there:
        return PidView(
            PidScope.OWN_USER,
            f"{facts.procfs} hides the processes of other users (hidepid): run the agent as root, or as a "
            "member of the group that its gid= option names",
        )
    return PidView(PidScope.HOST, f"{facts.procfs} shows every process of the host")


def _is_hosts(facts: PidFacts) -> bool:
    if facts.first_namespace == _HOST_NAMESPACE or facts.second_name == _SECOND_OF_HOST:
        return True
    # Our own namespace is the one this procfs shows only if we have one pid in it and no other below.
    own_pids = parse_status(facts.own_status or "").namespaced_pids
    return len(own_pids) == 1 and facts.own_namespace == _HOST_NAMESPACE
