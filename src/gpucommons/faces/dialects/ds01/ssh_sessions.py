"""ds01_ssh_sessions_*: open SSH sessions."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

ACTIVE = gauge("ds01_ssh_sessions_active", "Open SSH sessions of a user.", "user")
TOTAL = gauge("ds01_ssh_sessions_total", "Open SSH sessions of all users.")

CATALOGUE = (ACTIVE, TOTAL)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    users = snapshot.readings.users
    if users is not None and users.ssh_sessions is not None:
        yield ACTIVE.of(((user,), count) for user, count in users.ssh_sessions.items())
        yield TOTAL.value(sum(users.ssh_sessions.values()))
