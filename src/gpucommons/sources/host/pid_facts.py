"""Reads the facts that show which pids a procfs contains: this process's own entry, and those of pids 1 and 2."""

import os
from pathlib import Path

from gpucommons.base.text import parse_decimal
from gpucommons.model.process_identity import PidFacts, ProcessDetails
from gpucommons.sources.host.process_details import ProcessDetailsReader


def read_pid_facts(procfs: Path) -> PidFacts:
    reader = ProcessDetailsReader(procfs)
    own_pid = parse_decimal(_link(procfs / "self") or "")
    own = None if own_pid is None else reader.read(own_pid)
    second = reader.read(2)
    return PidFacts(
        procfs=str(procfs),
        own_status=own.status if isinstance(own, ProcessDetails) else None,
        own_namespace=_link(procfs / "self" / "ns" / "pid"),
        first_namespace=_link(procfs / "1" / "ns" / "pid"),
        first_is_there=(procfs / "1").exists(),
        second_name=second.name if isinstance(second, ProcessDetails) else None,
    )


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
