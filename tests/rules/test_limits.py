"""What limits a running program now: one sentence, from what the snapshot has and nothing else."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from demo_node import DemoNode
from gpucommons.model.gpu import THROTTLE_REASONS, GpmReading
from gpucommons.model.ownership import WHOLE_SM, Portion, ProcessShare
from gpucommons.model.process_identity import ProcessTable, TreeActivity
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
    gpu = replace(gpu, readings=gpu.readings._replace(throttle_mask=throttle), gpm=gpm)
    trees = None
    if on_core is not None:
        pids = frozenset({mine.pid})
        trees = TreeActivity(pids if on_core else frozenset(), pids if on_disk else frozenset())
    readings = Readings(
        attribution=replace(attribution, processes=shares),
        gpus=replace(reading, gpus=(gpu,)),
        processes=ProcessTable({}, (), trees),
    )
    return limits_of(snapshot_of(readings), shares[:1])[0]


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
        alone = replace(readings.attribution, processes=(share,))
        here = replace(readings, attribution=alone, processes=ProcessTable({}, (), trees), sharing=None)
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
