"""Connection tracking of netfilter: size of the table, and packet counters summed over the CPUs."""

from pathlib import Path

from gpucommons.model.host import Conntrack
from gpucommons.sources.host.procfs import read_file, read_whole

_STATISTICS = ("found", "invalid", "ignore", "insert", "insert_failed", "drop", "early_drop", "search_restart")


def parse_statistics(text: bytes) -> dict[str, int]:
    """One line per CPU in hexadecimal, below a line of names. A column that the kernel has dropped is left out."""
    head, *rows = text.decode("ascii").splitlines()
    # Some kernels write two column names without a separator, search_restart among them: those are not recognised.
    columns = {name: place for place, name in enumerate(head.split()) if name in _STATISTICS}
    table = [row.split() for row in rows]
    return {name: sum(int(row[place], 16) for row in table) for name, place in columns.items()}


def read_conntrack(procfs: Path) -> Conntrack:
    entries, limit = (int(read_file(procfs, f"sys/net/netfilter/nf_conntrack_{name}")) for name in ("count", "max"))
    return Conntrack(entries, limit, parse_statistics(read_whole(procfs, "net/stat/nf_conntrack")))
