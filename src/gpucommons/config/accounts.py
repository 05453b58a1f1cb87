"""The settings of the ledger, its accounts and events. Values only."""

from dataclasses import dataclass

from gpucommons.config.option import option
from gpucommons.config.prices import check_currency, parse_prices, price_text


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """The durable accounts. The state directory is /var/lib/gpucommons, or ~/.local/state/gpucommons for a user."""

    enabled: bool = option(True, "record who held and used which GPU, on a node that has a GPU")
    file: str = option(
        "",
        "path of the ledger, also of a simulation; empty: ledger.sqlite in the state directory, "
        "for a simulation ledger-NAME.sqlite",
    )
    flush_s: float = option(10.0, "seconds between two writes; a crash loses at most this much", minimum=1)
    keep_minutes_d: float = option(2.0, "days for which usage is kept by the minute", minimum=1)
    keep_hours_d: float = option(400.0, "days for which usage is kept by the hour", minimum=2)
    keep_days_d: float = option(1830.0, "days for which usage is kept by the day", minimum=31)
    active_ratio: float = option(0.05, "share of its allocation that an active workload uses, 0 to 1", minimum=0)


@dataclass(frozen=True, slots=True)
class AccountsSettings:
    """What the accounts cost. The prices in force are applied to every period, also to a past one."""

    price_per_gpu_hour: str = option(
        "",
        "price of holding a GPU for an hour: a number, or a table by shell patterns of the GPU's model of which the "
        'first that matches decides, such as { "*H100*" = 2.5, "*" = 1 }; a MIG device costs its part of the GPU; '
        "a GPU that no pattern matches has no price; empty: no cost is shown",
        check=parse_prices,
        as_text=price_text,
    )
    price_per_kwh: float = option(
        0.0, "price of a kilowatt-hour, which is added to the cost; 0: energy costs nothing extra", minimum=0
    )
    currency: str = option("", "currency of the prices, such as EUR; empty: not shown", check=check_currency)
    co2_g_per_kwh: float = option(
        0.0, "grams of CO2 that a kilowatt-hour causes, for the CO2 of each row; 0: not shown", minimum=0
    )


@dataclass(frozen=True, slots=True)
class EventsSettings:
    file: str = option("/var/log/ds01/events.jsonl", "event log of DS01, which is followed if it exists")
    own_file: str = option(
        "",
        "path of the agent's event log, also of a simulation; empty: events.jsonl in the state directory, "
        "for a simulation events-NAME.jsonl",
    )


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """One line for each user, such as alice = { gpu_equivalents = 2 }."""

    gpu_equivalents: float = option(0.0, "GPU-equivalents that the user may hold", minimum=0)
