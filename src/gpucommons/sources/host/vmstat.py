"""Paging, swapping and OOM kills from /proc/vmstat: the fields that node_exporter takes by default."""

import re
from pathlib import Path

from gpucommons.sources.host.procfs import read_whole

_FIELDS = re.compile(rb"^((?:oom_kill|pgpg|pswp|pg\S*fault)\S*) (\d+)$", re.MULTILINE)


def parse_vmstat(text: bytes) -> dict[str, int]:
    return {name.decode("ascii", "replace"): int(value) for name, value in _FIELDS.findall(text)}


def read_vmstat(procfs: Path) -> dict[str, int]:
    return parse_vmstat(read_whole(procfs, "vmstat"))
