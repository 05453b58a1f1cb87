"""What a GPU-hour and a kilowatt-hour cost, and how much CO2 a kilowatt-hour causes. What is not set is not shown.

Numbers are integers, in billionths, so that sums are exact.
"""

from typing import NamedTuple, Self

BILLION = 10**9


class Prices(NamedTuple):
    """`per_gpu_hour` has shell patterns of GPU models with their prices; the first that matches decides.

    None is not set.
    """

    per_gpu_hour: tuple[tuple[str, int], ...] = ()
    per_kwh: int | None = None
    currency: str = ""
    co2_g_per_kwh: int | None = None


class Charge(NamedTuple):
    """What the held time of some slots costs. `amount` is the price of an hour times nanoseconds.

    `unpriced_ns` is held time without a price: no pattern matches the GPU's model, or the driver does not report
    which part of its GPU a MIG device is.
    """

    amount: int = 0
    priced_ns: int = 0
    unpriced_ns: int = 0

    def plus(self, other: Self) -> "Charge":
        return Charge(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


NO_PRICES = Prices()
NO_CHARGE = Charge()
