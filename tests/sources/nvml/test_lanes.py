"""Calls that are measured as expensive run less often; a single slow call has no effect; calls can move back."""

from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from fakes.nvml.rig import Rig
from gpucommons.model.gpu import LaneMove
from gpucommons.sources.nvml.calls import Lane, LaneTable, is_cheap_again, is_costly, remember

UUID = "GPU-3ea3f955-c0e4-1497-8afd-c9836cb19860"
BUDGET = 10.0


@given(st.lists(st.floats(0, 100), min_size=5))
def test_a_call_is_costly_when_the_median_of_its_last_five_is(costs: list[float]) -> None:
    history = 0
    for cost in costs:
        history = remember(history, cost > BUDGET)
    assert is_costly(history) == (median(costs[-5:]) > BUDGET)


@given(st.lists(st.floats(0, 100), min_size=5))
def test_a_call_is_cheap_again_when_all_of_its_last_five_are(costs: list[float]) -> None:
    history = 0
    for cost in costs:
        history = remember(history, cost < BUDGET / 2)
    assert is_cheap_again(history) == (max(costs[-5:]) < BUDGET / 2)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(list(Lane)))))
def test_the_table_knows_the_lane_of_a_call(moves: list[tuple[str, Lane]]) -> None:
    book = LaneTable()
    where = {"a": Lane.FAST, "b": Lane.FAST}
    for call, lane in moves:
        book.move(UUID, call, lane)
        where[call] = lane
    assert {call: book.lane(UUID, call, Lane.FAST) for call in "ab"} == where
    assert {move.call for move in book.slow_calls()} == {c for c, lane in where.items() if lane is Lane.SLOW}
    assert sum(book.moves.values()) == len(moves)
    assert book.lane(UUID, "slow by nature", Lane.SLOW) is Lane.SLOW


def slowed(rig: Rig, call: str) -> None:
    rig.fast_budget_s = 0.05
    rig.fake.say(f"slow {call} 60000")


def test_a_costly_call_moves_to_the_slow_lane_and_is_reported(rig: Rig) -> None:
    slowed(rig, "nvmlDeviceGetTotalEnergyConsumption")
    rig.read_for(2)
    assert rig.fake.calls("nvmlDeviceGetTotalEnergyConsumption") == 2
    reading = rig.read()
    assert reading.lane_moves == {LaneMove(UUID, "energy", "slow"): 1}
    assert reading.slow_calls == (LaneMove(UUID, "energy", "slow"),)
    reading = rig.read_for(10)
    assert rig.fake.calls("nvmlDeviceGetTotalEnergyConsumption") == 3
    assert reading.gpus[0].readings.energy_millijoules == 2668847
    rig.read_for(5)
    assert rig.fake.calls("nvmlDeviceGetTotalEnergyConsumption") == 4


def test_a_single_slow_call_moves_nothing(rig: Rig) -> None:
    rig.read()
    slowed(rig, "nvmlDeviceGetTotalEnergyConsumption")
    rig.read_for(2)
    rig.fake.unsay("slow")
    reading = rig.read_for(8)
    assert not reading.lane_moves
    assert rig.fake.calls("nvmlDeviceGetTotalEnergyConsumption") == 11


def test_a_call_moves_back_when_it_is_cheap_again(rig: Rig) -> None:
    slowed(rig, "nvmlDeviceGetTotalEnergyConsumption")
    rig.read_for(4)
    rig.fake.unsay("slow")
    reading = rig.read_for(4 * 15)
    assert reading.slow_calls
    reading = rig.read_for(2 * 15)
    assert not reading.slow_calls
    assert reading.lane_moves == {LaneMove(UUID, "energy", "slow"): 1, LaneMove(UUID, "energy", "fast"): 1}
    before = rig.fake.calls("nvmlDeviceGetTotalEnergyConsumption")
    rig.read_for(5)
    assert rig.fake.calls("nvmlDeviceGetTotalEnergyConsumption") == before + 5


def test_a_call_to_keep_fast_stays_in_the_fast_lane(rig: Rig) -> None:
    rig.keep_fast = frozenset({"gpm"})
    slowed(rig, "nvmlGpmSampleGet")
    rig.fake.say("slow nvmlDeviceGetTotalEnergyConsumption 60000")
    reading = rig.read_for(8)
    assert rig.fake.calls("nvmlGpmSampleGet") == 8
    assert reading.slow_calls == (LaneMove(UUID, "energy", "slow"),)


def test_a_call_moves_only_on_the_gpu_where_it_is_costly(rig: Rig) -> None:
    rig.fast_budget_s = 0.05
    rig.fake.say("gpus 2", "slow nvmlDeviceGetPowerUsage 60000 1")
    rig.read_for(8)
    assert rig.fake.calls("nvmlDeviceGetPowerUsage", gpu=0) == 8
    assert rig.fake.calls("nvmlDeviceGetPowerUsage", gpu=1) == 3


def test_a_new_session_keeps_the_lanes(rig: Rig) -> None:
    slowed(rig, "nvmlDeviceGetTotalEnergyConsumption")
    rig.read_for(3)
    rig.source.close()
    reading = rig.read_for(3)
    assert reading.connections == 2
    assert rig.fake.calls("nvmlDeviceGetTotalEnergyConsumption") == 4
    assert sum(reading.lane_moves.values()) == 1


def test_pcie_throughput_is_not_called_where_gpm_has_it(rig: Rig) -> None:
    gpu = rig.read_for(3).gpus[0]
    assert rig.fake.calls("nvmlDeviceGetPcieThroughput") == 0
    assert gpu.pcie_tx_bytes_per_s is not None
    assert gpu.gpm is not None
    assert gpu.pcie_tx_bytes_per_s == gpu.gpm.pcie_tx_bytes_per_s


def test_without_gpm_pcie_throughput_runs_in_the_slow_lane(rig: Rig) -> None:
    rig.fast_budget_s = 0.01
    rig.fake.say("set nvmlGpmQueryDeviceSupport 0 0", "slow nvmlDeviceGetPcieThroughput 20000")
    gpu = rig.read_for(10).gpus[0]
    assert (gpu.pcie_tx_bytes_per_s, gpu.pcie_rx_bytes_per_s) == (1614000, 544000)
    assert rig.fake.calls("nvmlDeviceGetPcieThroughput") == 6
    assert gpu.gpm is None
