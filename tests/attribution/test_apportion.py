"""What the driver reports for a GPU is divided without loss: the parts and the rest always sum to it."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.model.ownership import WHOLE_SM, Basis, Portion, Reason
from gpucommons.owners.apportion import Apportionment, DeviceTotals, Division, Resident, apportion

MEASURED, APPORTIONED = Basis.MEASURED, Basis.APPORTIONED
GIB = 1 << 30


def amounts(division: Division) -> list[int | None]:
    return [part.amount if part else None for part in division.parts]


def bases(division: Division) -> set[Basis]:
    return {part.basis for part in division.parts if part}


def total_of(division: Division) -> int:
    return sum(part.amount for part in division.parts if part) + sum(division.rest.values())


class TestMemory:
    def test_each_has_what_the_driver_says_and_the_driver_keeps_the_rest(self) -> None:
        device = DeviceTotals(memory_used_bytes=1422721024, memory_total_bytes=150754820096)
        memory = apportion(device, [Resident(1413480448, None)]).memory
        assert memory.parts == [Portion(1413480448, MEASURED)]
        assert memory.rest == {Reason.DRIVER_RESERVED: 1422721024 - 1413480448}

    def test_who_has_no_reading_leaves_the_rest_unknown(self) -> None:
        memory = apportion(DeviceTotals(memory_used_bytes=10), [Resident(4, None), Resident(None, None)]).memory
        assert memory.parts == [Portion(4, MEASURED), None]
        assert memory.rest == {Reason.NO_MEMORY_READING: 6}

    def test_more_than_is_used_is_scaled_down_and_said_so(self) -> None:
        memory = apportion(DeviceTotals(memory_used_bytes=10), [Resident(10, None), Resident(20, None)]).memory
        assert memory.parts == [Portion(3, APPORTIONED), Portion(6, APPORTIONED)]
        assert memory.rest == {Reason.ROUNDING: 1}

    def test_more_than_the_gpu_has_is_no_reading(self) -> None:
        device = DeviceTotals(memory_used_bytes=10, memory_total_bytes=100)
        memory = apportion(device, [Resident(2**64 - 1, None), Resident(7, None), Resident(-1, None)]).memory
        assert memory.parts == [None, Portion(7, MEASURED), None]
        assert memory.rest == {Reason.NO_MEMORY_READING: 3}

    def test_no_process_in_sight(self) -> None:
        assert apportion(DeviceTotals(memory_used_bytes=5), []).memory.rest == {Reason.DRIVER_RESERVED: 5}
        hidden = DeviceTotals(memory_used_bytes=5, unlisted=Reason.NOT_VISIBLE)
        assert apportion(hidden, []).memory.rest == {Reason.NOT_VISIBLE: 5}

    def test_without_a_total_there_is_no_rest(self) -> None:
        memory = apportion(DeviceTotals(), [Resident(4, None)]).memory
        assert (memory.total, memory.parts, memory.rest) == (None, [Portion(4, MEASURED)], {})


class TestSmTime:
    def test_as_sampled(self) -> None:
        sm = apportion(DeviceTotals(sm_millionths=900_000), [Resident(1, 500_000), Resident(1, 300_000)]).sm
        assert sm.parts == [Portion(500_000, MEASURED), Portion(300_000, MEASURED)]
        assert sm.rest == {Reason.NO_UTILIZATION_SAMPLE: 100_000}

    def test_samples_above_the_gpus_own_are_scaled_down(self) -> None:
        sm = apportion(DeviceTotals(sm_millionths=600_000), [Resident(1, 900_000), Resident(1, 300_000)]).sm
        assert sm.parts == [Portion(450_000, APPORTIONED), Portion(150_000, APPORTIONED)]

    def test_an_idle_process_stays_as_measured_where_others_are_scaled_down(self) -> None:
        sampled = [Resident(1, 900_000), Resident(1, 0), Resident(1, None), Resident(1, 300_000)]
        sm = apportion(DeviceTotals(sm_millionths=600_001), sampled).sm
        assert sm.parts == [Portion(450_000, APPORTIONED), Portion(0, MEASURED), None, Portion(150_000, APPORTIONED)]
        assert sm.rest == {Reason.ROUNDING: 1}

    def test_who_was_not_sampled_is_missing_while_another_was(self) -> None:
        sm = apportion(DeviceTotals(sm_millionths=600_000), [Resident(1, 600_000), Resident(1, None)]).sm
        assert sm.parts == [Portion(600_000, MEASURED), None]

    def test_without_samples_by_memory(self) -> None:
        sm = apportion(DeviceTotals(sm_millionths=900_000), [Resident(2 * GIB, None), Resident(GIB, None)]).sm
        assert sm.parts == [Portion(600_000, APPORTIONED), Portion(300_000, APPORTIONED)]

    @pytest.mark.parametrize("memory", [(None, GIB), (0, 0), (None, None), (-5, GIB)])
    def test_without_samples_or_memory_evenly(self, memory: tuple[int | None, int | None]) -> None:
        sm = apportion(DeviceTotals(sm_millionths=900_001), [Resident(m, None) for m in memory]).sm
        assert sm.parts == [Portion(450_000, APPORTIONED), Portion(450_000, APPORTIONED)]
        assert sm.rest == {Reason.ROUNDING: 1}

    def test_a_sample_above_the_whole_is_no_sample(self) -> None:
        sm = apportion(DeviceTotals(sm_millionths=500_000), [Resident(1, WHOLE_SM + 1)]).sm
        assert sm.parts == [Portion(500_000, APPORTIONED)]

    def test_busy_without_a_process(self) -> None:
        assert apportion(DeviceTotals(sm_millionths=5), []).sm.rest == {Reason.NO_PROCESS: 5}
        assert apportion(DeviceTotals(sm_millionths=0), []).sm.rest == {}

    def test_under_mig_each_instance_is_its_residents(self) -> None:
        device = DeviceTotals(instances={1: 300_000, 2: 100_000, 5: 7})
        residents = [Resident(GIB, None, 1), Resident(GIB, None, 2), Resident(2 * GIB, None, 1)]
        sm = apportion(device, residents).sm
        assert amounts(sm) == [100_000, 100_000, 200_000]
        assert bases(sm) == {APPORTIONED}
        assert sm.total == 400_007
        assert sm.rest == {Reason.NO_PROCESS: 7}

    def test_under_mig_who_is_in_an_instance_without_a_reading_is_missing(self) -> None:
        sm = apportion(DeviceTotals(instances={1: 5}), [Resident(1, None, 1), Resident(1, None, 2)]).sm
        assert amounts(sm) == [5, None]


class TestPower:
    def test_idle_draw_is_shared_and_the_rest_goes_by_sm_time(self) -> None:
        device = DeviceTotals(sm_millionths=800_000, power_milliwatts=500_000)
        power = apportion(device, [Resident(1, 600_000), Resident(9, 200_000)], 100_000).power
        assert amounts(power) == [50_000 + 300_000, 50_000 + 100_000]
        assert bases(power) == {APPORTIONED}
        assert power.rest == {}

    def test_what_is_lost_in_dividing_sm_time_draws_no_power(self) -> None:
        """Three residents without samples and memory: one millionth is left over, and all power is theirs."""
        device = DeviceTotals(sm_millionths=100_000, power_milliwatts=300_000)
        shares = apportion(device, [Resident(None, None)] * 3)
        assert shares.sm.rest == {Reason.ROUNDING: 1}
        assert amounts(shares.power) == [100_000] * 3
        assert shares.power.rest == {}

    def test_power_without_a_known_user_is_unattributed(self) -> None:
        device = DeviceTotals(sm_millionths=800_000, power_milliwatts=500_000)
        power = apportion(device, [Resident(1, 600_000)], 100_000).power
        assert amounts(power) == [100_000 + 300_000]
        assert power.rest == {Reason.NO_UTILIZATION_SAMPLE: 100_000}

    def test_an_idle_gpu_is_paid_for_by_its_residents_alike(self) -> None:
        power = apportion(
            DeviceTotals(sm_millionths=0, power_milliwatts=70_001), [Resident(1, 0), Resident(9, 0)]
        ).power
        assert amounts(power) == [35_000, 35_000]
        assert power.rest == {Reason.ROUNDING: 1}

    def test_an_empty_gpu_has_no_owner(self) -> None:
        assert apportion(DeviceTotals(power_milliwatts=70_000), []).power.rest == {Reason.NO_PROCESS: 70_000}

    def test_without_any_activity_by_memory(self) -> None:
        power = apportion(DeviceTotals(power_milliwatts=90), [Resident(2, None), Resident(1, None)]).power
        assert amounts(power) == [60, 30]

    def test_an_idle_draw_above_the_draw_is_the_draw(self) -> None:
        device = DeviceTotals(sm_millionths=10, power_milliwatts=50)
        assert amounts(apportion(device, [Resident(1, 10), Resident(1, 0)], 100).power) == [25, 25]

    def test_no_power_reading(self) -> None:
        assert apportion(DeviceTotals(), [Resident(1, 1)]).power == Division(None, [None])


def maybe(most: int) -> st.SearchStrategy[int | None]:
    """Missing, ordinary, zero, or absurd: negative and far beyond the device."""
    return st.none() | st.integers(0, most) | st.sampled_from([0, 1, -1, most + 1, 2**64 - 1])


RESIDENTS = st.lists(st.builds(Resident, maybe(80 * GIB), maybe(WHOLE_SM), st.none() | st.integers(0, 3)), max_size=12)
IDLE = st.none() | st.integers(0, 1_000_000)
DEVICES = st.builds(
    DeviceTotals,
    memory_used_bytes=st.none() | st.integers(0, 80 * GIB),
    memory_total_bytes=st.none() | st.integers(0, 80 * GIB),
    sm_millionths=st.none() | st.integers(0, WHOLE_SM),
    power_milliwatts=st.none() | st.integers(0, 1_000_000),
    instances=st.none() | st.dictionaries(st.integers(0, 3), st.integers(0, WHOLE_SM), max_size=4),
    unlisted=st.sampled_from([Reason.DRIVER_RESERVED, Reason.NOT_VISIBLE, Reason.NO_PROCESS_LIST]),
)


def divisions(result: Apportionment) -> Iterable[Division]:
    return (result.memory, result.sm, result.power)


@given(DEVICES, RESIDENTS, IDLE)
def test_parts_and_rest_sum_to_the_total(device: DeviceTotals, residents: list[Resident], idle: int | None) -> None:
    result = apportion(device, residents, idle)
    for division in divisions(result):
        assert len(division.parts) == len(residents)
        assert all(part.amount >= 0 for part in division.parts if part)
        assert all(amount > 0 for amount in division.rest.values())
        if division.total is None:
            assert not division.rest
        else:
            assert total_of(division) == division.total
    assert result.memory.total == device.memory_used_bytes
    assert result.power.total == device.power_milliwatts
    if device.instances is None:
        assert result.sm.total == device.sm_millionths


@given(DEVICES, RESIDENTS, IDLE)
def test_rounding_is_only_rounding(device: DeviceTotals, residents: list[Resident], idle: int | None) -> None:
    pools = 1 + len(device.instances or ())
    for division in divisions(apportion(device, residents, idle)):
        assert division.rest.get(Reason.ROUNDING, 0) <= pools + 2 * (len(residents) + len(Reason))


@given(DEVICES, RESIDENTS, IDLE)
def test_a_measured_part_is_what_the_driver_reported(
    device: DeviceTotals, residents: list[Resident], idle: int | None
) -> None:
    result = apportion(device, residents, idle)
    for resident, memory, sm in zip(residents, result.memory.parts, result.sm.parts, strict=True):
        if memory and memory.basis is MEASURED:
            assert memory.amount == resident.memory_bytes
        if sm and sm.basis is MEASURED:
            assert sm.amount == resident.sm_millionths


@given(DEVICES, RESIDENTS, IDLE, st.data())
def test_the_order_does_not_matter(
    device: DeviceTotals, residents: list[Resident], idle: int | None, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(range(len(residents))))
    first = apportion(device, residents, idle)
    second = apportion(device, [residents[i] for i in shuffled], idle)
    for one, other in zip(divisions(first), divisions(second), strict=True):
        assert [one.parts[i] for i in shuffled] == other.parts
        assert one.rest == other.rest
