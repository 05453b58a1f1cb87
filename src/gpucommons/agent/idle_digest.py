"""The weekly digest from the files of the accounts and of the events. Blocks while it reads them."""

import math
from collections import Counter
from pathlib import Path
from typing import Final

from gpucommons.idle.digest import LostGpu, digest_text
from gpucommons.ledger.accounts import accounts_of
from gpucommons.ledger.errors import LedgerError
from gpucommons.ledger.event_detector import GPU_LOST
from gpucommons.ledger.event_log import read_events
from gpucommons.ledger.query import PeriodUsage, read_period
from gpucommons.model.accounts import By

_WEEK_S: Final = 7 * 86_400


def weekly_digest(ledger: Path, event_log: Path, hostname: str, now_wall_s: float) -> str:
    """Of the seven days before now. If the accounts cannot be read, the text says so."""
    until_s = math.ceil(now_wall_s)
    since_s = until_s - _WEEK_S
    events = [event for event in read_events(event_log) if since_s <= event.wall_s < until_s]
    lost = [LostGpu(str(event.details.get("gpu", "?")), event.wall_s) for event in events if event.type == GPU_LOST]
    steps = Counter(event.type for event in events)
    try:
        usage = read_period(ledger, since_s, until_s) if ledger.exists() else PeriodUsage(since_s, until_s)
    except LedgerError as error:
        return f"The accounts of {hostname} cannot be read: {error}"
    return digest_text(hostname, accounts_of(usage, By.USER), accounts_of(usage, By.GPU), lost, steps)
