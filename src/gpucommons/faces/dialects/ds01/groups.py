"""ds01_group_members_total: the users of each group."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

MEMBERS = gauge("ds01_group_members_total", "Users in a group.", "group")

CATALOGUE = (MEMBERS,)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    users = snapshot.readings.users
    if users is not None:
        yield MEMBERS.of(((group,), len(people)) for group, people in users.members.items())
