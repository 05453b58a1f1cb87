"""Money: which price applies, what is billed, and what stays unknown."""

import pytest

from gpucommons.model.accounts import BILLION, NO_CHARGE, NO_PRICES, Amounts, Charge, Prices
from gpucommons.model.allocations import Slot
from gpucommons.model.cost import charge_of, cost_columns, price_of

HOUR_NS = 3600 * 10**9
KWH_UJ = 3_600_000 * 10**6
GPU = Slot("GPU-0", "GPU-0", "0")
BY_MODEL = Prices((("*h100*", 3 * BILLION), ("*H100 PCIe", BILLION), ("Tesla T4", 0)))


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("NVIDIA H100 80GB HBM3", 3 * BILLION),
        ("NVIDIA H100 PCIe", 3 * BILLION),
        ("tesla t4", 0),
        ("NVIDIA A100", None),
        ("", None),
    ],
)
def test_the_first_pattern_that_matches_decides(model: str, price: int | None) -> None:
    assert price_of(model, BY_MODEL) == price


def test_a_price_for_all_gpus_needs_no_model() -> None:
    assert price_of("", Prices((("*", 5),))) == 5


def test_held_hours_are_billed_whether_they_are_used_or_not() -> None:
    idle, busy = Amounts(HOUR_NS, 0, HOUR_NS, HOUR_NS), Amounts(HOUR_NS, HOUR_NS, 0, HOUR_NS)
    charge = charge_of(GPU, "H100", idle, BY_MODEL)
    assert charge == charge_of(GPU, "H100", busy, BY_MODEL) == Charge(3 * BILLION * HOUR_NS, HOUR_NS)
    assert cost_columns(idle, charge, BY_MODEL) == {"gpu_cost": 3.0, "cost": 3.0, "unpriced_gpu_hours": 0.0}


def test_a_mig_device_costs_its_part_and_an_unknown_part_is_unknown() -> None:
    held = Amounts(HOUR_NS, 0, 0, HOUR_NS * 3 // 7)
    charge = charge_of(Slot("MIG-0", "GPU-0", "0.0", 3, 7), "H100", held, BY_MODEL)
    assert cost_columns(held, charge, BY_MODEL)["cost"] == round(3 * 3 / 7, 6)
    charge = charge_of(Slot("MIG-0", "GPU-0", "0.0", None), "H100", Amounts(HOUR_NS), BY_MODEL)
    columns = cost_columns(Amounts(HOUR_NS), charge, BY_MODEL)
    assert columns == {"gpu_cost": None, "cost": None, "unpriced_gpu_hours": 1.0}


def test_a_model_that_is_free_of_charge_costs_zero() -> None:
    held = Amounts(HOUR_NS, 0, 0, HOUR_NS)
    assert cost_columns(held, charge_of(GPU, "Tesla T4", held, BY_MODEL), BY_MODEL)["cost"] == 0.0


def test_energy_that_was_not_measured_has_no_cost_and_no_co2() -> None:
    prices = Prices(per_kwh=BILLION // 4, co2_g_per_kwh=380 * BILLION)
    assert cost_columns(Amounts(HOUR_NS), NO_CHARGE, prices) == {"energy_cost": None, "cost": None, "co2_g": None}
    measured = cost_columns(Amounts(energy_uj=2 * KWH_UJ), NO_CHARGE, prices)
    assert measured == {"energy_cost": 0.5, "cost": 0.5, "co2_g": 760.0}


def test_without_prices_there_are_no_columns() -> None:
    assert cost_columns(Amounts(HOUR_NS, energy_uj=KWH_UJ), NO_CHARGE, NO_PRICES) == {}
