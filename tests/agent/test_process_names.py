"""The names of clients without a pod come from the kernel and the agent's readings, not from what they claim."""

from gpucommons.agent.sharing.sharing import process_names
from gpucommons.base.peers import ClientProcess
from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.model.process_identity import ProcessContext, ProcessKey
from gpucommons.model.workloads import UsersReading
from gpucommons.scheduler.policy.policy import Policy
from gpucommons.scheduler.policy.quotas import LimitLookup, QuotaRule, QuotaValues
from gpucommons.scheduler.policy.state import Client
from gpucommons.scheduler.programs.jobs import read_programs
from gpucommons.scheduler.service.state_reader import ProcessNames
from scheduler.programs.node import Node, Proc

TRAIN = ProcessContext(("python3", "-u", "/home/alice/train.py", "--secret", "x"))


def client(pid: int, uid: int = 1000, start_ticks: int = 100, **given: str) -> Client:
    gpu = Policy(SchedulerSettings()).add_gpu("GPU-0", 0, 0.0)
    return Client(1, gpu, pid=pid, uid=uid, process=ClientProcess(uid, pid, start_ticks), **given)  # type: ignore[arg-type]


def names() -> ProcessNames:
    readings = Node([Proc(4711, context=TRAIN)]).readings()
    programs = read_programs(readings, 0.0)
    assert programs is not None
    return process_names(programs, UsersReading(names={1000: "alice"}), {4711})


def test_a_client_without_a_pod_is_named_by_owner_and_command() -> None:
    assert names().by_key == {ProcessKey(4711, 100): "alice · train.py (pid 4711)"}
    assert names().of_client(client(4711)) == "alice · train.py (pid 4711)"


def test_a_client_that_is_not_on_a_gpu_is_named_by_its_user() -> None:
    assert names().of_client(client(5)) == "alice (pid 5)"
    assert names().of_client(client(5, uid=7)) == "uid 7 (pid 5)"


def test_a_reused_pid_does_not_get_the_name_of_the_last_process() -> None:
    assert names().of_client(client(4711, start_ticks=101)) == "alice (pid 4711)"


def test_a_client_with_a_pod_is_named_by_it() -> None:
    assert names().of_client(client(4711, pod="train-0", namespace="ml")) == "ml/train-0"


def test_the_pod_of_a_client_is_that_of_its_process_not_the_one_it_claims() -> None:
    limits = LimitLookup([QuotaRule("trusted", quota=QuotaValues(None, 90)), QuotaRule(quota=QuotaValues(None, 10))])
    claims = client(4711, pod="trusted", namespace="ml")
    assert limits.enter(claims, 0, 0).core_percent == 90
    known = names().pod_of(claims)
    assert known == ("none", "none")
    assert limits.identify(claims, known)
    assert limits.decide(claims).core_percent == 10
    assert "trusted" not in limits.names(claims)
    assert names().pod_of(client(4711, start_ticks=101)) is None, "a reused pid"
