"""What a job used on each of its nodes (jobs.py), as comments in Slurm's accounts. Pure.

AdminComment has the format that Princeton's jobstats reads: `JS1:` and, in base64, the gzipped JSON

    {"nodes": {NODE: {"cpus": 12, "total_time": 57620.8, "total_memory": 137438953472, "used_memory": 84683702272,
                      "gpu_utilization": {"0": 98.6}, "gpu_used_memory": {"0": 1}, "gpu_total_memory": {"0": 2}}},
     "total_time": 50944, "gpus": 1}

`total_time` of a node is CPU time, that of the job its run time, both in seconds; memory is in bytes, utilization in
percent. `JS1:Short` is a job that ended before its second sample, `JS1:None` one of which nothing is known. A value
that is not known is left out, as jobstats expects.

SystemComment has the same as text, short enough for a column of sacct.
"""

import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any, Final

from gpucommons.model.fleet import JobRun, NodeUse

SHORT_S: Final = 30.0
_MAX_TEXT: Final = 160


def jobstats(nodes: Mapping[str, NodeUse], run: JobRun) -> dict[str, Any]:
    return {
        "nodes": {node: _of_node(use) for node, use in nodes.items()},
        "total_time": run.seconds,
        "gpus": run.gpus if run.gpus is not None else sum(len(use.gpus) for use in nodes.values()),
    }


def _of_node(use: NodeUse) -> dict[str, Any]:
    comment: dict[str, Any] = {}
    for name in ("cpus", "used_memory", "total_memory"):
        if (value := getattr(use, name)) is not None:
            comment[name] = int(value)
    if use.total_time is not None:
        comment["total_time"] = round(use.total_time, 1)
    for slot, figures in sorted(use.gpus.items()):
        for name, value in figures.items():
            number = round(100 * value, 1) if name == "gpu_utilization" else int(value)
            comment.setdefault(name, {})[slot] = number
    return comment


def admin_comment(nodes: Mapping[str, NodeUse], run: JobRun) -> str:
    if not nodes:
        return "JS1:Short" if run.seconds < SHORT_S else "JS1:None"
    text = json.dumps(jobstats(nodes, run), separators=(",", ":"))
    # Without the time of day in it: the same job has the same comment.
    return f"JS1:{base64.b64encode(gzip.compress(text.encode('ascii'), mtime=0)).decode('ascii')}"


def system_comment(nodes: Mapping[str, NodeUse], run: JobRun) -> str:
    """Such as: gpucommons: 2 nodes, GPU 62%, GPU memory 51%, CPU 10%, memory 6%."""
    if not nodes:
        return "gpucommons: no data, the job was too short or its nodes are not scraped"
    gpus = [figures for use in nodes.values() for figures in use.gpus.values()]
    used = sum(figures.get("gpu_used_memory", 0.0) for figures in gpus)
    total = sum(figures.get("gpu_total_memory", 0.0) for figures in gpus)
    cpus = sum(use.cpus or 0 for use in nodes.values())
    parts = [f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"]
    if busy := [figures["gpu_utilization"] for figures in gpus if "gpu_utilization" in figures]:
        parts.append(f"GPU {sum(busy) / len(busy):.0%}")
    if total:
        parts.append(f"GPU memory {used / total:.0%}")
    if cpus and run.seconds:
        parts.append(f"CPU {sum(use.total_time or 0 for use in nodes.values()) / (cpus * run.seconds):.0%}")
    limits = sum(use.total_memory or 0 for use in nodes.values())
    if limits:
        parts.append(f"memory {sum(use.used_memory or 0 for use in nodes.values()) / limits:.0%}")
    return f"gpucommons: {', '.join(parts)}"[:_MAX_TEXT]
