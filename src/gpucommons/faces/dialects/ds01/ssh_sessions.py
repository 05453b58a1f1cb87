"""ds01_ssh_sessions_*: open SSH sessions. Without a record of sessions the total is 0, as in DS01's exporter."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

ACTIVE = gauge("ds01_ssh_sessions_active", "Open SSH sessions of a user.", "user")
TOTAL = gauge("ds01_ssh_sessions_total", "Open SSH sessions of all users.")

CATALOGUE = (ACTIVE, TOTAL)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    users = snapshot.readings.users
    if users is not None:
        sessions = users.ssh_sessions or {}
        yield ACTIVE.of(((user,), count) for user, count in sessions.items())
        yield TOTAL.value(sum(sessions.values()))
