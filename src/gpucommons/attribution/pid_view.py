"""Decides whether the pids that the driver tells can be found in our procfs, and says plainly why not."""

from gpucommons.attribution.process_status import parse_status
from gpucommons.model.process_identity import PidFacts, PidScope, PidView

# The kernel gives the first pid namespace this number on every machine.
_HOST_NAMESPACE = "pid:[4026531836]"
# pid 2 of the host is this kernel thread; no other pid namespace has kernel threads.
_SECOND_OF_HOST = "kthreadd"
_REMEDY = "run it with the host's (hostPID: true, docker run --pid=host)"


def pid_view(facts: PidFacts) -> PidView:
    where = facts.procfs
    if facts.own_status is None:
        return PidView(
            PidScope.NONE, f"{where} shows no processes: mount the host's /proc and name it with --path.procfs"
        )
    if not _is_hosts(facts):
        return PidView(
            PidScope.NAMESPACE,
            f"{where} shows the processes of one container, in whose pid namespace the agent is, and those that use "
            f"the GPU from outside are hidden from it: {_REMEDY}",
        )
    if not _are_we_the_hosts(facts):
        return PidView(
            PidScope.NAMESPACE,
            f"{where} shows the host's processes, but the agent is in a pid namespace of its own, and to such "
            f"the driver does not tell them: {_REMEDY}",
        )
    if not facts.first_is_there:
        return PidView(
            PidScope.OWN_USER,
            f"{where} hides the processes of other users (hidepid): run the agent as root, or as a member of the "
            "group that its gid= option names",
        )
    return PidView(PidScope.HOST, f"{where} shows every process of the host")


def _is_hosts(facts: PidFacts) -> bool:
    if facts.first_namespace == _HOST_NAMESPACE or facts.second_name == _SECOND_OF_HOST:
        return True
    return _are_we_the_hosts(facts) and facts.own_namespace == _HOST_NAMESPACE


def _are_we_the_hosts(facts: PidFacts) -> bool:
    """Whether our own pid namespace is the one that this procfs shows: then we have but one pid in it."""
    own_pids = parse_status(facts.own_status or "").namespaced_pids
    return len(own_pids) == 1 if own_pids else facts.own_namespace == _HOST_NAMESPACE
