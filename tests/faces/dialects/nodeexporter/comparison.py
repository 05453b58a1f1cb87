"""Compares our exposition with node_exporter's: series, values and types.

Ours is taken before and after theirs. A counter of theirs must lie between the two, always. A gauge that moves must
come close in one of several rounds: it may jump between two looks at it. What does not move must be equal.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from parsing import Series, parsed, types_of

Key = tuple[str, tuple[tuple[str, str], ...]]

# Metrics of the program instead of the machine. The labels of the build differ; another test checks them.
_OF_THE_PROGRAM = ("go_", "process_", "promhttp_", "node_exporter_build_info")
_NOT_COMPARED = ("node_scrape_collector_duration_seconds",)
# Gauges of values that change; vmstat's counters are untyped there.
_MOVES = (
    *("node_load", "node_memory_", "node_procs_", "node_filefd_allocated", "node_sockstat_", "node_disk_io_now"),
    *("node_filesystem_avail_", "node_filesystem_free_", "node_filesystem_files_free"),
    *("node_nf_conntrack_entries", "node_nf_conntrack_stat_", "node_netstat_Tcp_CurrEstab"),
    *("node_timex_offset_", "node_timex_frequency_", "node_timex_maxerror_", "node_timex_estimated_"),
)
_STANDS = (
    *("node_memory_MemTotal_bytes", "node_memory_Swap", "node_memory_Hugepagesize", "node_memory_VmallocTotal"),
    *("node_memory_CommitLimit", "node_memory_HugePages_", "node_nf_conntrack_entries_limit"),
)
_COUNTS = ("node_time_seconds", "node_vmstat_", "node_netstat_")
_CLOSE_RATIO = 0.02
# A few processes, sockets or pages more or less.
_CLOSE = 16.0
_BYTES_CLOSE = 1 << 20
_SECONDS_CLOSE = 0.05
# The frequency of a clock is adjusted by less than this, as a ratio, between two looks.
_TUNING_CLOSE = 1e-4


def of_the_machine(text: str) -> Series:
    return {key: value for key, value in parsed(text).items() if not key[0].startswith(_OF_THE_PROGRAM)}


@dataclass
class Comparison:
    """`wrong` are definite differences; `far` are gauges that have not been close yet."""

    wrong: list[str] = field(default_factory=list)
    far: dict[Key, str] = field(default_factory=dict)
    close: set[Key] = field(default_factory=set)
    compared: int = 0

    def add(self, before: str, theirs: str, after: str) -> None:
        first, peer, last = of_the_machine(before), of_the_machine(theirs), of_the_machine(after)
        # A device may appear or disappear between two expositions.
        self.wrong += [f"we lack {key}" for key in peer.keys() - first.keys() - last.keys()]
        self.wrong += [f"they lack {key}" for key in (first.keys() & last.keys()) - peer.keys()]
        counters = {name for name, kind in types_of(theirs).items() if kind == "counter"}
        for key in first.keys() & peer.keys() & last.keys():
            self._one(key, first[key], peer[key], last[key], key[0].removesuffix("_total") in counters)
        self.compared = len(peer)
        self.far = {key: why for key, why in self.far.items() if key not in self.close}

    def _one(self, key: Key, first: float, peer: float, last: float, is_counter: bool) -> None:
        name = key[0]
        says = f"{key}: ours {first!r}, theirs {peer!r}, then ours {last!r}"
        if name.startswith(_NOT_COMPARED):
            return
        if is_counter or (name.startswith(_COUNTS) and not name.startswith(_MOVES)):
            slack = _SECONDS_CLOSE if "seconds" in name else 0.0
            if not first - slack <= peer <= last + slack:
                self.wrong.append(says)
        elif name.startswith(_MOVES) and not name.startswith(_STANDS):
            slack = _slack(name, max(abs(first), abs(last)))
            if min(first, last) - slack <= peer <= max(first, last) + slack:
                self.close.add(key)
            else:
                self.far[key] = says
        elif not _equal(first, peer):
            self.wrong.append(says)


def _slack(name: str, size: float) -> float:
    if name.startswith("node_timex_"):
        return _SECONDS_CLOSE if "seconds" in name else _TUNING_CLOSE
    return _CLOSE_RATIO * size + (_BYTES_CLOSE if "bytes" in name else _CLOSE)


def _equal(left: float, right: float) -> bool:
    """Except for the last digit: node_exporter multiplies by a rounded thousandth."""
    return left == right or abs(left - right) <= 1e-12 * max(abs(left), abs(right))


def differences(ours: str, theirs: str) -> Iterator[str]:
    """The differences of two expositions of an unchanging machine."""
    left, right = of_the_machine(ours), of_the_machine(theirs)
    yield from (f"we lack {key}" for key in right.keys() - left.keys())
    yield from (f"they lack {key}" for key in left.keys() - right.keys())
    for key in left.keys() & right.keys():
        if not key[0].startswith((*_NOT_COMPARED, "node_time_seconds")) and not _equal(left[key], right[key]):
            yield f"{key}: ours {left[key]!r}, theirs {right[key]!r}"
