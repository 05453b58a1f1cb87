"""What is known of a program before any reading lists it: real processes, named as attribution names those on GPUs."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from cgroup_trees import limited_cgroups
from gpucommons.agent.sharing.sharing import NewcomerReader
from gpucommons.model.leases import Lease, LeaseRequest, LeasesReading
from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.snapshot import Readings
from gpucommons.model.workloads import Pod, PodReading, UsersReading
from gpucommons.pauser.release import key_of
from gpucommons.scheduler.programs.exemptions import is_labelled_alone
from gpucommons.scheduler.programs.jobs import GpuUser, Program
from gpucommons.scheduler.programs.matching import class_of_lease, pod_of
from needs import needs_root
from users import as_user

POD_UID = "8d6b1a3e-2f0c-4f5e-9b7a-0c1d2e3f4a5b"
COMMAND = ("python3", "/home/carol/train.py")


@contextmanager
def running(*prefix: str) -> Iterator[ProcessKey]:
    """A process that has executed, after the prefix, a program that waits."""
    process = subprocess.Popen([*prefix, "sh", "-c", "echo; read line"], stdin=-1, stdout=-1)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        key = key_of(process.pid)
        assert key is not None
        yield key
    finally:
        process.communicate()


def read(key: ProcessKey, **readings: object) -> GpuUser:
    reader = NewcomerReader()
    reader.readings = Readings(**readings)  # type: ignore[arg-type]
    found = reader.read(key, COMMAND)
    assert found is not None
    return found


def test_a_program_of_a_user_has_its_session_its_name_and_its_command() -> None:
    needs_root()
    with running("setsid", *as_user(4711)) as key:
        found = read(key, users=UsersReading(names={4711: "carol"}))
    assert (found.key, found.job, found.uses) == (key, f"session:{key.pid}@4711", ())
    assert (found.user, found.command) == ("carol", "train.py")
    assert Program(found.job, (found,)).display_name == f"carol · train.py (pid {key.pid})"


def test_a_program_in_a_pod_is_known_by_its_cgroup() -> None:
    pod = Pod(POD_UID, "night", "ml", labels={"gpucommons.share": "false"})
    with limited_cgroups(**{f"pod{POD_UID}": 1 << 30}) as tree, running(*tree.entering(f"pod{POD_UID}")) as key:
        known = read(key, pods=PodReading.of([pod]))
        unknown = read(key)
    assert pod_of(Program(known.job, (known,))) == ("ml", "night")
    assert known.job == f"pod:{POD_UID}"
    assert is_labelled_alone(Program(known.job, (known,)))
    assert pod_of(Program(unknown.job, (unknown,))) is None, "no pods are listed"


def test_a_program_of_a_lease_has_its_class() -> None:
    lease = Lease(LeaseRequest(4711, "carol", 0.0, share=True, id="7", sharing_class="background"), (), 1.0, 0.0)
    client = key_of(os.getpid())
    assert client is not None
    leases = LeasesReading(leases=(lease,), clients={"7": client})
    with running() as key:
        found = read(key, leases=leases)
        other = read(key, leases=leases._replace(clients={}))
    assert class_of_lease(Program(found.job, (found,))).sharing_class == "background"
    assert class_of_lease(Program(other.job, (other,))).sharing_class is None


def test_a_process_that_has_ended_is_not_described() -> None:
    with running() as key:
        assert NewcomerReader().read(key, COMMAND) is not None
        assert NewcomerReader().read(key._replace(start_ticks=key.start_ticks + 1), COMMAND) is None, "a reused pid"
    assert NewcomerReader().read(key, COMMAND) is None
