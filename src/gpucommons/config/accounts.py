"""The settings of what users are billed, granted and reminded of: accounts, leases, idle holders. Values only."""

import math
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from gpucommons.base.address import parse_remote_address
from gpucommons.config.option import check_mail_address, check_mail_pattern, check_url, option

# The price of a GPU-hour as a setting: a number for all GPUs, or a table by GPU model. Pure.
#
# As text, such as in an environment variable, it is `2.5` or `*H100*=2.5, *=1`.

_LONGEST_CURRENCY = 8
_HIGHEST = 10**9


def price_text(value: object) -> object:
    """The text of a number or of a table in the file; all other values as they are. Raises ValueError."""
    if isinstance(value, dict):
        return ", ".join(f"{_pattern(pattern)}={_number(price, pattern)}" for pattern, price in value.items())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value, "*")
    return value


def parse_prices(text: str) -> tuple[tuple[str, int], ...]:
    """Patterns of GPU models with their prices in billionths, in their order; empty if no price is set.

    Raises ValueError.
    """
    if "=" not in text:
        return (("*", _price(text, "*")),) if text.strip() else ()
    prices = []
    for part in text.split(","):
        pattern, equals, price = part.rpartition("=")
        if not equals or not pattern.strip():
            raise ValueError(f"invalid price {part.strip()!r}: use PATTERN=PRICE, such as *H100*=2.5")
        prices.append((pattern.strip(), _price(price, pattern.strip())))
    return tuple(prices)


def check_currency(text: str) -> None:
    if len(text) > _LONGEST_CURRENCY or not text.isprintable() or " " in text:
        raise ValueError(f"invalid currency {text!r}: use at most {_LONGEST_CURRENCY} characters without spaces")


def _pattern(text: str) -> str:
    if not text.strip() or "=" in text or "," in text:
        raise ValueError(f"invalid pattern {text!r}: use a shell pattern of the GPU's model, such as *H100*")
    return text


def _number(value: object, pattern: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"invalid price {value!r} for {pattern!r}: use a number")
    _price(repr(value), pattern)
    return repr(value)


def _price(text: str, pattern: str) -> int:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        raise ValueError(f"invalid price {text.strip()!r} for {pattern!r}: use a number") from None
    if not math.isfinite(number) or not 0 <= number <= _HIGHEST:
        raise ValueError(f"invalid price {text.strip()} for {pattern!r}: use 0 to {_HIGHEST}")
    return in_billionths(number)


def in_billionths(number: Decimal | float) -> int:
    """As it is written: 0.1 is a tenth."""
    return round(Decimal(str(number)) * 10**9)


# The settings of the ledger, its accounts and events. Values only.


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


# The settings of idle holders and of the channels for messages. Values only.


@dataclass(frozen=True, slots=True)
class IdleSettings:
    """Messages to holders of idle GPUs. They are shown by gpucommons me, and sent by [mail] and [webhook] if set."""

    after_s: float = option(
        7200.0,
        "seconds for which a holder has not used its GPUs when it gets the first message, and length of the window in "
        "which that is judged; 0: no messages",
        minimum=0,
    )
    active_percent: float = option(
        1.0,
        "percent of an idle period, or of its last after_s, that may be used without ending the period",
        minimum=0,
        maximum=50,
    )
    remind_after_s: float = option(
        7200.0, "seconds of further idleness from the first message to a reminder; 0: none", minimum=0
    )
    act: str = option(
        "none",
        "what is done to a holder that stays idle. park: the GPU memory of its programs goes to host memory "
        "(scheduler.share_programs); end_lease: its lease is ended; none: nothing",
        choices=("none", "park", "end_lease"),
    )
    act_after_s: float = option(
        14_400.0, "seconds of further idleness from the first delivered message to the action of act", minimum=1
    )
    digest_day: str = option(
        "monday",
        "day of the weekly digest to mail.admin and [webhook]: hours held, active and wasted, and lost GPUs",
        choices=("off", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
    )
    digest_hour: int = option(8, "hour of the weekly digest, in local time, 0 to 23", minimum=0, maximum=23)


@dataclass(frozen=True, slots=True)
class IdleRuleSettings:
    """One line for each rule, such as services = { user = "svc-*", leave_alone = true }. The first that matches counts.

    A rule without leave_alone and email changes nothing.
    """

    user: str = option("*", "shell pattern of the user's name; for a pod, of NAMESPACE/POD")
    leave_alone: bool = option(False, "true: no message and no action")
    email: str = option(
        "", "email address of these users, in which {user} is the name; empty: mail.address", check=check_mail_pattern
    )


@dataclass(frozen=True, slots=True)
class MailSettings:
    """The mail server for messages of [idle]."""

    server: str = option("", "HOST:PORT of the SMTP server; empty: no email", check=parse_remote_address)
    tls: str = option(
        "starttls",
        "encryption of the connection: starttls (port 587), tls (port 465) or none (a relay on this machine)",
        choices=("starttls", "tls", "none"),
    )
    ca_file: str = option(
        "", "certificate of the authority that signed the server's certificate; empty: those of the system"
    )
    user: str = option("", "name for the login at the server; empty: no login")
    password_file: str = option("", "file whose first line is the password of mail.user, read for each message")
    sender: str = option("", "address from which messages are sent; needed with mail.server", check=check_mail_address)
    address: str = option(
        "",
        "address of a user, in which {user} is the name, such as {user}@example.org; empty: only users with a rule in "
        "[idle_rules] get email",
        check=check_mail_pattern,
    )
    admin: str = option("", "address that gets the weekly digest; empty: none", check=check_mail_address)


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """A webhook that accepts {"text": ...}, such as one of Slack or Mattermost. It gets the messages of [idle], the
    problems of the node, and commands that start after a long wait."""

    url: str = option("", "URL of the webhook; empty: none, unless url_file is set", check=check_url)
    url_file: str = option("", "file whose first line is the URL, in place of url, read for each message; empty: none")
    problems: bool = option(True, "also send the node's problems that last for a minute, and when they are over")
    min_wait_s: float = option(
        300.0,
        "also send which command of gpucommons run starts now, if it has waited for at least these seconds; 0: never",
        minimum=0,
    )


# The settings of leases. Values only.


@dataclass(frozen=True, slots=True)
class LeasesSettings:
    """The queue of `gpucommons run`."""

    enabled: str = option(
        "auto",
        "give leases. auto: unless Slurm or Kubernetes manages the GPUs of this node",
        choices=("auto", "true", "false"),
    )
    socket: str = option(
        "",
        "socket for gpucommons run; empty: leases.sock in /run/gpucommons, or in gpucommons below $XDG_RUNTIME_DIR "
        "for an agent without root",
    )
    admin_group: str = option("", "group that may cancel leases and reservations of all users, like root; empty: none")
    pass_limit_s: float = option(
        3600.0, "seconds for which later requests may take GPUs that a waiting request could use", minimum=0
    )
    share_limit: int = option(5, "leases that may share a GPU, if all of them accept to share", minimum=1)
    no_show_after_s: float = option(
        1800.0, "seconds after which a reservation that is not used is released", minimum=60
    )
    reserve_ahead_d: float = option(14.0, "days from now at which a reservation may start at the latest", minimum=0)
    enforce: str = option(
        "report",
        "what is done about processes without a lease on an exclusively leased GPU. report: they are shown; "
        "pause: they are paused until the lease ends, also where scheduler.share_programs is off",
        choices=("report", "pause"),
    )
    at_limit: str = option(
        "signal",
        "what is done about programs that still use the GPUs of a lease a minute after its time limit (run --for). "
        "message: they are shown; pause: others may lease the GPUs, and the programs are paused meanwhile; signal: "
        "they get SIGTERM, and SIGKILL after 30 s",
        choices=("message", "pause", "signal"),
    )
    mps: str = option(
        "off",
        "run commands that share a GPU (run --share) under NVIDIA's MPS, which enforces --memory and --sm. per_user: "
        "with a daemon for each user; all_users: with one daemon for all, which ends the commands of all if one of "
        "them makes a fatal error on the GPU. Needs an agent that runs as root",
        choices=("off", "per_user", "all_users"),
    )


@dataclass(frozen=True, slots=True)
class LeaseQuotaSettings:
    """One line for each rule, such as students = { group = "students", gpus = 4 } or all = { user = "*", gpus = 2 }."""

    user: str = option("", "shell pattern of user names; the quota is for each of these users")
    group: str = option("", "group whose members have the quota together, in place of user")
    gpus: float = option(
        0.0, "GPUs that may be leased at once; a MIG device counts by its slices; 0: no limit", minimum=0
    )
    hours: float = option(0.0, "GPU-hours in the last 30 days, from the accounts; 0: no limit", minimum=0)
    sm_percent: int = option(
        0,
        "percent of a GPU's threads that each command may use under MPS (leases.mps), whatever the number of commands; "
        "0: no limit",
        minimum=0,
        maximum=100,
    )
