"""ds01_user_group_info, ds01_ssh_sessions_*, ds01_user_cpu_*: people, their groups, sessions and slices."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.snapshot import Snapshot

SESSIONS = gauge("ds01_ssh_sessions_active", "SSH sessions that a user has open.", "user")
SESSIONS_TOTAL = gauge("ds01_ssh_sessions_total", "SSH sessions that are open.")
GROUP = gauge("ds01_user_group_info", "1; the group that a user is counted under.", "user", "group")
MEMBERS = gauge("ds01_group_members_total", "People of a group.", "group")
CPU = counter(
    "ds01_user_cpu_usage_seconds_total",
    "CPU time that a user's slices used.",
    "user",
    "group",
    optional=("group",),
)
MEMORY = gauge(
    "ds01_user_memory_current_bytes", "Memory that a user's slices use now.", "user", "group", optional=("group",)
)

CATALOGUE = (SESSIONS, SESSIONS_TOTAL, GROUP, MEMBERS, CPU, MEMORY)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    users = snapshot.readings.users
    if users is None:
        return
    if users.ssh_sessions is not None:
        yield SESSIONS.of(((user,), count) for user, count in users.ssh_sessions.items())
        yield SESSIONS_TOTAL.value(sum(users.ssh_sessions.values()))
    yield GROUP.of(((user, group), 1) for user, group in users.group_of.items())
    yield MEMBERS.of(((group,), len(people)) for group, people in users.members.items())
    slices = [((each.user, each.group), each) for each in users.slices]
    yield CPU.of((labels, each.cpu_seconds) for labels, each in slices if each.cpu_seconds is not None)
    yield MEMORY.of((labels, each.memory_bytes) for labels, each in slices if each.memory_bytes is not None)
