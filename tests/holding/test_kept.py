"""What is kept from one reading to the next, so that unchanged processes cost little, changes no result."""

from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from attribution.builders import gpu, mig_instance
from gpucommons.model.gpu import GpuProcess
from gpucommons.model.ownership import Place, Reason
from gpucommons.model.process_identity import ProcessContext, ProcessKey
from gpucommons.model.snapshot import Readings
from gpucommons.model.workloads import ContainerReading
from gpucommons.owners.holding_stage import AllocationStage
from holding.test_allocations import USERS, managed, process, readings
from holding.test_leases import OLDER, YOUNGER, leases

BOX = managed("box", "alice", "0")
# The same objects in each reading: whatever else is new makes everything new.
DOCKER, LEASES = ContainerReading({BOX.id: BOX}), leases("GPU-0")
STAFF = USERS._replace(group_of={"bob": "staff"})
# GPU 1 has an instance with two MIG devices, and two more instances.
HALVES = tuple(mig_instance(1, 2, None)._replace(uuid=f"MIG-{n}", compute_instance_id=n) for n in (0, 1))
MIG = (*HALVES, *(mig_instance(n, 2, None)._replace(uuid=f"MIG-{n}") for n in (2, 3)))


class Seen(NamedTuple):
    pid: int
    user: str = "bob"
    owned: bool = True
    boxed: bool = False
    # Of GPU 1; None: on GPU 0.
    instance: int | None = None
    compute: int = 0
    graphics: bool = False
    lease: ProcessKey | None = None


class Pass(NamedTuple):
    rows: list[Seen]
    leased: bool = False
    users_are_staff: bool = False

    @property
    def readings(self) -> Readings:
        shares, listed, contexts = [], [], {}
        by_pid = {row.pid: row for row in self.rows}
        for row in sorted(by_pid.values(), key=lambda row: row.instance is not None):
            share = process(BOX if row.boxed else None, row.user, pid=row.pid)
            if not row.owned:
                share = share._replace(owner=None, reason=Reason.NO_OWNER)
            index = 0 if row.instance is None else 1
            shares.append(share if row.instance is None else share._replace(place=Place("GPU-1", 1, row.instance)))
            compute = row.compute if row.instance == 1 else None
            kind = "graphics" if row.graphics else "compute"
            used = GpuProcess(
                row.pid, share.key, kind, 1 << 20, gpu_instance_id=row.instance, compute_instance_id=compute
            )
            listed.append((index, used))
            contexts[ProcessKey(row.pid, 1)] = ProcessContext(ancestors=(row.lease,) if row.lease else ())
        cards = [
            gpu(index, mig=MIG if index else (), processes=[row for at, row in listed if at == index])
            for index in (0, 1)
        ]
        found = readings(BOX, gpus=cards, processes=shares, process_contexts=contexts)
        return found._replace(
            docker=DOCKER, leases=LEASES if self.leased else None, users=STAFF if self.users_are_staff else USERS
        )


rows = st.builds(
    Seen,
    st.sampled_from([7, 8, 9]),
    st.sampled_from(["alice", "bob"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([0, 1]),
    st.booleans(),
    st.sampled_from([None, OLDER, YOUNGER]),
)
passes = st.lists(st.builds(Pass, st.lists(rows, max_size=4), st.booleans(), st.booleans()), min_size=2, max_size=6)
SAME = Seen(8)


@given(passes)
@example([Pass([SAME]), Pass([SAME], leased=True)])
@example([Pass([SAME]), Pass([SAME], users_are_staff=True)])
@example([Pass([SAME], leased=True), Pass([SAME._replace(lease=YOUNGER)], leased=True)])
@example([Pass([SAME]), Pass([SAME._replace(user="alice")])])
@example([Pass([SAME]), Pass([SAME._replace(owned=False)])])
@example([Pass([SAME._replace(boxed=True)]), Pass([SAME]), Pass([SAME._replace(boxed=True)])])
@example([Pass([SAME]), Pass([SAME._replace(graphics=True)])])
@example([Pass([SAME._replace(instance=1)]), Pass([SAME._replace(instance=1, compute=1)])])
@example([Pass([SAME._replace(instance=2)]), Pass([SAME._replace(instance=3)])])
@example([Pass([SAME]), Pass([SAME, Seen(9)])])
def test_allocations_are_as_without_what_is_kept(passes: list[Pass]) -> None:
    kept, forgetful = (AllocationStage(monotonic=lambda: 0.0, wall=lambda: 0.0) for _ in range(2))
    for each in passes:
        forgetful._blocks = {}
        assert kept(each.readings).allocations == forgetful(each.readings).allocations


def test_the_rows_of_unchanged_processes_are_kept() -> None:
    stage, same = AllocationStage(), Pass([SAME, Seen(9, instance=1)], leased=True)
    stage(same.readings)
    before = dict(stage._blocks)
    stage(same.readings)
    assert before.keys() == {"GPU-0", "GPU-1"}
    assert all(stage._blocks[uuid] is block for uuid, block in before.items())
