"""`gpucommons slurm targets`: the nodes of the cluster for Prometheus' http_sd or file_sd. Pure.

One group for each node, with its name and partitions as labels. A node that is down stays a
target: that it cannot be scraped is what the alert is for.
"""

from collections.abc import Sequence
from typing import Any, Final

# One line for each node and partition.
COMMAND: Final = ("sinfo", "-h", "-N", "-o", "%N|%o|%R|%G")


def targets(text: str, port: int, *, gpus_only: bool) -> list[dict[str, Any]]:
    """From the output of COMMAND. A node is scraped at its NodeAddr."""
    partitions: dict[tuple[str, str], list[str]] = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 4 or (gpus_only and not _has_gpus(fields[3])):
            continue
        node, address, partition, _ = fields
        partitions.setdefault((node, address or node), []).append(partition)
    return [
        {
            "targets": [f"[{address}]:{port}" if ":" in address else f"{address}:{port}"],
            "labels": {"node": node, "slurm_partition": ",".join(sorted(set(names)))},
        }
        for (node, address), names in sorted(partitions.items())
    ]


def _has_gpus(gres: str) -> bool:
    kinds: Sequence[str] = [each.partition(":")[0] for each in gres.split(",")]
    return "gpu" in kinds
