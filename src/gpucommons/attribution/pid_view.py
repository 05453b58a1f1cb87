"""Decides whether the pids that the driver reports can be found in procfs, and explains why not."""

from gpucommons.attribution.process_status import parse_status
from gpucommons.model.process_identity import PidFacts, PidScope, PidView

# The kernel gives the first pid namespace this number on every machine.
_HOST_NAMESPACE = "pid:[4026531836]"
# pid 2 of the host is this kernel thread; no other pid namespace has kernel threads.
_SECOND_OF_HOST = "kthreadd"
_REMEDY = "run the agent in the host's pid namespace (hostPID: true, docker run --pid=host)"


def pid_view(facts: PidFacts) -> PidView:
    where = facts.procfs
    if facts.own_status is None:
        return PidView(PidScope.NONE, f"{where} shows no processes: mount the host's /proc and set --path.procfs")
    if not _is_hosts(facts):
        return PidView(
            PidScope.NAMESPACE,
            f"{where} shows only the processes of the agent's container; other processes that use the GPU are hidden: "
            f"{_REMEDY}",
        )
    if not _is_own_namespace_shown(facts):
        return PidView(
            PidScope.NAMESPACE,
            f"{where} shows the host's processes, but the agent is in another pid namespace, where the driver does not "
            f"list them: {_REMEDY}",
        )
    if not facts.first_is_there:
        return PidView(
            PidScope.OWN_USER,
            f"{where} hides the processes of other users (hidepid): run the agent as root, or as a member of the "
            "group in its gid= option",
        )
    return PidView(PidScope.HOST, f"{where} shows every process of the host")


def _is_hosts(facts: PidFacts) -> bool:
    if facts.first_namespace == _HOST_NAMESPACE or facts.second_name == _SECOND_OF_HOST:
        return True
    return _is_own_namespace_shown(facts) and facts.own_namespace == _HOST_NAMESPACE


def _is_own_namespace_shown(facts: PidFacts) -> bool:
    """Whether this procfs shows the agent's pid namespace: then the agent has exactly one pid in it."""
    own_pids = parse_status(facts.own_status or "").namespaced_pids
    return len(own_pids) == 1 if own_pids else facts.own_namespace == _HOST_NAMESPACE
