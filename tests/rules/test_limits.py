"""What limits a running program now: one sentence, from what the snapshot has and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo_node import DemoNode
from gpucommons.model.gpu import THROTTLE_REASONS, GpmReading
from gpucommons.model.ownership import WHOLE_SM, Portion, ProcessShare
from gpucommons.model.process_identity import ProcessTable, TreeActivity
from gpucommons.model.sharing import ParkedReading, ParkingReading, SharingReading, WaitReading, WaitReason
from gpucommons.model.snapshot import Readings
from gpucommons.rules.limits import LimitKind, ProgramLimit, limits_of
from gpucommons.simulation.day import DAY_S
from gpucommons.simulation.lab_jobs import JOBS
from played import snapshot_of
from simulation.played_lab import PlayedLab

NODE = DemoNode(gpus=1, processes_a_gpu=2)
AFTERNOON_S = 0.15 * DAY_S
BITS = {name: bit for bit, name in THROTTLE_REASONS}


def judged(
    own: float | None,
    other: float | None = None,
    on_core: bool | None = None,
    on_disk: bool = False,
    throttle: int = 0,
    dram: float | None = None,
    pcie_bytes_per_s: int | None = None,
    sharing: SharingReading | None = None,
) -> ProgramLimit | None:
    """What limits the first of two processes of one GPU, each of another owner."""
    attribution = NODE.attribution(0.0)
    mine, theirs = attribution.processes[:2]
    assert mine.owner != theirs.owner

    def with_sm(share: ProcessShare, ratio: float | None) -> ProcessShare:
        basis = share.sm.basis if share.sm else None
        assert basis is not None
        return share._replace(sm=None if ratio is None else Portion(round(ratio * WHOLE_SM), basis))

    shares = (with_sm(mine, own), with_sm(theirs, other))
    reading = NODE.gpu_reading(0.0)
    gpu = reading.gpus[0]
    gpm = None if dram is None else GpmReading(dram_ratio=dram)
    read = gpu.readings._replace(throttle_mask=throttle, pcie_generation=5, pcie_width=16)
    gpu = gpu._replace(readings=read._replace(pcie_rx_bytes_per_s=pcie_bytes_per_s, pcie_tx_bytes_per_s=None), gpm=gpm)
    trees = None
    if on_core is not None:
        pids = frozenset({mine.pid})
        trees = TreeActivity(pids if on_core else frozenset(), pids if on_disk else frozenset())
    readings = Readings(
        attribution=attribution._replace(processes=shares),
        gpus=reading._replace(gpus=(gpu,)),
        processes=ProcessTable({}, (), trees),
        sharing=sharing,
    )
    return limits_of(snapshot_of(readings), shares[:1])[0]


def shared(
    wait: WaitReading | None = None, parked: str = "", waits: str = "", quota: float = 100.0, used_s: float = 0.0
) -> SharingReading:
    """The first process waits for its turn, is parked, or has used a part of its quota in a window of 2 s."""
    pid, reading = NODE.attribution(0.0).processes[0].pid, NODE.sharing(0.0)
    client = reading.clients[0]._replace(pid=pid, wait=wait, turn_s=None if wait else 1.0)
    client = client._replace(
        core_quota_effective_percent=quota, window_usage_s=used_s, window_limit_s=2.0 * quota / 100
    )
    program = ParkedReading("k", "a.py", "alice", 1000, parked, "", (pid,), 2**30, 2**30, 0.0, "idle", waits)
    programs = (program,) if parked else ()
    return reading._replace(clients=(client,), parking=ParkingReading(programs=programs))


SENTENCES = {
    "parked": (judged(0.9, sharing=shared(parked="parked")), "it is parked: its GPU memory is in host memory"),
    "parked and late": (
        judged(0.9, sharing=shared(parked="parked", waits="no room on GPU 0")),
        "it is parked: its GPU memory is in host memory: no room on GPU 0",
    ),
    "waking": (judged(0.9, sharing=shared(parked="waking")), "its memory is coming back to GPU 0"),
    "turn": (
        judged(0.9, sharing=shared(WaitReading(WaitReason.TURN, 5.0, 0, 0, 1.0))),
        "it waits for its turn on GPU 0: another client has the turn",
    ),
    "in turns": (
        judged(0.4, other=0.5, sharing=shared(WaitReading(WaitReason.DEMAND, 0.2, 0, 0, 0.1))),
        "it shares GPU 0 with bob (50%), and uses 40% of it",
    ),
    "quota, waits": (
        judged(0.3, sharing=shared(WaitReading(WaitReason.QUOTA, 0.1, 0, 0, 0.1), quota=30.0, used_s=0.6)),
        "its quota is the limit: 30% of the time of GPU 0",
    ),
    "quota, runs": (
        judged(0.3, sharing=shared(quota=30.0, used_s=0.57)),
        "its quota is the limit: 30% of the time of GPU 0",
    ),
    "heat": (
        judged(0.9, throttle=BITS["sw_thermal_slowdown"]),
        "GPU 0 is too hot (69 °C) and runs slower until it cools",
    ),
    "power": (judged(0.9, throttle=BITS["sw_power_cap"]), "GPU 0 is at its power limit of 700 W and runs slower"),
    "hardware": (
        judged(0.9, throttle=BITS["hw_power_brake_slowdown"]),
        "GPU 0 is slowed down by the hardware: ask the administrator",
    ),
    "shared": (judged(0.4, other=0.5), "it shares GPU 0 with bob (50%), and uses 40% of it"),
    "cpu": (
        judged(0.3, on_core=True),
        "it waits for its CPU or data loader: GPU 0 is active for 30% of the time, one CPU core is busy all the time",
    ),
    "disk": (judged(0.3, on_core=False, on_disk=True), "it waits for a disk: GPU 0 is active for 30% of the time"),
    "idle": (judged(0.0, on_core=False), "it does not use GPU 0 now"),
    "something else": (
        judged(0.3, on_core=False),
        "GPU 0 is active for 30% of the time; it waits for something else than its CPU or a disk",
    ),
    "not known": (judged(0.3), "GPU 0 is active for 30% of the time; what it waits for is not known"),
    "bandwidth": (judged(0.9, dram=0.9), "the memory bandwidth of GPU 0 is the limit: 90% of it is used"),
    "pcie": (judged(0.9, pcie_bytes_per_s=63_008_000_000), "PCIe is the limit: 100% of the link of GPU 0 is used"),
    "gpu": (judged(0.9), "GPU 0 is the limit: it uses 90% of it"),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_the_sentence_of_each_limit(name: str) -> None:
    found, expected = SENTENCES[name]
    assert found is not None
    assert found.sentence == expected


def test_every_kind_has_a_sentence_above() -> None:
    assert {found.kind for found, _ in SENTENCES.values() if found is not None} == {*LimitKind}


def kind(limit: ProgramLimit | None) -> LimitKind | None:
    return None if limit is None else limit.kind


def test_each_limit_is_found() -> None:
    assert kind(judged(0.9)) is LimitKind.GPU
    assert kind(judged(0.4, other=0.5)) is LimitKind.SHARED
    assert kind(judged(0.3, on_core=True)) is LimitKind.CPU
    assert kind(judged(0.3, on_core=False, on_disk=True)) is LimitKind.DISK
    assert kind(judged(0.0, on_core=False)) is LimitKind.IDLE
    assert kind(judged(0.9, dram=0.9)) is LimitKind.BANDWIDTH
    assert kind(judged(0.9, throttle=BITS["hw_thermal_slowdown"])) is LimitKind.HEAT
    assert kind(judged(0.9, throttle=BITS["sw_power_cap"])) is LimitKind.POWER
    assert kind(judged(0.4, other=0.5, throttle=BITS["sw_power_cap"])) is LimitKind.SHARED
    assert kind(judged(0.4, other=0.5, throttle=BITS["hw_thermal_slowdown"])) is LimitKind.HEAT
    assert kind(judged(0.9, sharing=shared(quota=100.0, used_s=2.0))) is LimitKind.GPU
    assert kind(judged(0.2, sharing=shared(quota=30.0, used_s=0.4), on_core=True)) is LimitKind.CPU
    assert judged(None) is None, "without a reading there is no judgement"


def test_the_sentences_have_the_numbers() -> None:
    shared, cpu = judged(0.4, other=0.5), judged(0.3, on_core=True)
    assert shared is not None
    assert cpu is not None
    assert "(50%)" in shared.sentence
    assert shared.sentence.endswith("and uses 40% of it")
    assert "active for 30% of the time" in cpu.sentence


def test_on_a_mig_device_the_parts_are_those_of_the_device() -> None:
    """A device with 3 of 7 slices that is busy all the time is 3/7 of its GPU in the attribution."""
    readings = PlayedLab("lab").at(AFTERNOON_S)
    assert readings.attribution is not None
    (found,) = (each for each in readings.attribution.processes if each.pid == JOBS[9].key.pid)
    assert found.sm is not None

    def limit(ratio: float) -> ProgramLimit | None:
        share = found._replace(sm=found.sm and found.sm._replace(amount=round(ratio * 3 / 7 * WHOLE_SM)))
        trees = TreeActivity(frozenset({share.pid}), frozenset())
        assert readings.attribution is not None
        alone = readings.attribution._replace(processes=(share,))
        here = readings._replace(attribution=alone, processes=ProcessTable({}, (), trees), sharing=None)
        return limits_of(snapshot_of(here), [share])[0]

    assert limit(0.99) == (LimitKind.GPU, "GPU 6.0 is the limit: it uses 99% of it")
    waits = limit(0.3)
    assert waits is not None
    assert waits.kind is LimitKind.CPU
    assert "GPU 6.0 is active for 30% of the time" in waits.sentence


RATIOS = st.none() | st.floats(0, 1)


@given(RATIOS, RATIOS, st.none() | st.booleans(), st.booleans(), st.sampled_from([0, *BITS.values()]), RATIOS)
def test_a_judgement_holds_for_its_reason(
    own: float | None, other: float | None, on_core: bool | None, on_disk: bool, throttle: int, dram: float | None
) -> None:
    found = judged(own, other, on_core, on_disk, throttle, dram)
    if found is None:
        return
    assert found.sentence
    assert "None" not in found.sentence
    if found.kind is LimitKind.SHARED:
        assert other is not None
        assert other >= 0.09
    if found.kind is LimitKind.CPU:
        assert on_core
        assert own is not None
        assert own < 0.8
    if found.kind in (LimitKind.HEAT, LimitKind.POWER, LimitKind.HARDWARE):
        assert throttle
    if found.kind is LimitKind.BANDWIDTH:
        assert dram is not None
        assert dram >= 0.7
    if found.kind is LimitKind.GPU:
        assert own is not None
        assert own >= 0.79, "a GPU that is not busy is not the limit"


def test_a_pod_that_shares_the_gpu_has_its_name_and_not_that_of_root() -> None:
    readings = PlayedLab("lab").at(AFTERNOON_S)._replace(sharing=None)
    assert readings.attribution is not None
    own = next(share for share in readings.attribution.processes if share.pid == 4524)
    limit = limits_of(snapshot_of(readings), [own])[0]
    assert limit is not None
    assert "it shares GPU 5 with inference/" in limit.sentence
    assert "root" not in limit.sentence
