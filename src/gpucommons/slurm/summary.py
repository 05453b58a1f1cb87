"""What a job used on each of its nodes, from Prometheus: for `report --job`, and as Slurm's comments. Pure.

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
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

SHORT_S: Final = 30.0
LABELS: Final = ("instance", "node", "slot")
# Series of a job exist only while it runs: the window may be long.
_WINDOW: Final = "30d"
_GIB: Final = 1 << 30
_MAX_TEXT: Final = 160
_RUN_TIME: Final = re.compile(r"\sRunTime=(?:(\d+)-)?(\d+):(\d+):(\d+)")
_GPUS: Final = re.compile(r"gres/gpu=(\d+)|JOB_GRES=gpu[^ ]*?:(\d+)")
# The metric of each figure, and how its samples become one number. Those of GPUs have the label `slot`.
_FIGURES: Final = {
    "gpu_utilization": ("avg", "gpucommons_job_gpu_sm_ratio"),
    "gpu_used_memory": ("max", "gpucommons_job_gpu_memory_bytes"),
    "gpu_total_memory": ("max", "gpucommons_job_gpu_memory_total_bytes"),
    "cpus": ("max", "gpucommons_job_cpus"),
    "total_time": ("max", "gpucommons_job_cpu_seconds_total"),
    "used_memory": ("max", "gpucommons_job_memory_bytes"),
    "total_memory": ("max", "gpucommons_job_memory_limit_bytes"),
}


class JobSample(NamedTuple):
    """One series of an answer: its labels and its value."""

    labels: Mapping[str, str]
    value: float | None


@dataclass(slots=True)
class NodeUse:
    """What the job used on one node. None is not known; `gpus` have the same keys as the figures of GPUs."""

    cpus: float | None = None
    total_time: float | None = None
    used_memory: float | None = None
    total_memory: float | None = None
    gpus: dict[str, dict[str, float]] = field(default_factory=dict)


def queries(job: str, selector: str = "") -> dict[str, str]:
    """The PromQL of each figure. `selector` are further label matchers, such as cluster="a"."""
    if not re.fullmatch(r"[0-9_]{1,40}", job):
        raise ValueError(f"{job!r} is not the id of a Slurm job: a number such as 4711")
    matchers = ",".join(filter(None, (f'job_id="{job}"', selector)))
    return {
        name: f"{how} by ({', '.join(LABELS)}) ({how}_over_time({metric}{{{matchers}}}[{_WINDOW}]))"
        for name, (how, metric) in _FIGURES.items()
    }


def nodes_of(answers: Mapping[str, Sequence[JobSample]]) -> dict[str, NodeUse]:
    """By the name of the node: the label `node`, as `slurm targets` sets it, else the host of `instance`."""
    found: dict[str, NodeUse] = {}
    for name, samples in answers.items():
        for labels, value in samples:
            node = labels.get("node") or labels.get("instance", "").rpartition(":")[0] or labels.get("instance", "")
            if value is None or not node:
                continue
            use = found.setdefault(node, NodeUse())
            if slot := labels.get("slot"):
                use.gpus.setdefault(slot, {})[name] = value
            elif hasattr(use, name):
                setattr(use, name, value)
    return dict(sorted(found.items()))


class JobRun(NamedTuple):
    """What Slurm says of the job: its run time, and its GPUs; None: not known."""

    seconds: int
    gpus: int | None


def parse_run(text: str) -> JobRun:
    """From `scontrol show job -o`."""
    time, gpus = _RUN_TIME.search(text), _GPUS.search(text)
    days, hours, minutes, seconds = (int(part or 0) for part in (time.groups() if time else (0, 0, 0, 0)))
    return JobRun(
        ((days * 24 + hours) * 60 + minutes) * 60 + seconds, int(gpus[1] or gpus[2]) if gpus is not None else None
    )


def jobstats(nodes: Mapping[str, NodeUse], run: JobRun) -> dict[str, Any]:
    return {
        "nodes": {node: _of_node(use) for node, use in nodes.items()},
        "total_time": run.seconds,
        "gpus": run.gpus if run.gpus is not None else sum(len(use.gpus) for use in nodes.values()),
    }


def _of_node(use: NodeUse) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("cpus", "used_memory", "total_memory"):
        if (value := getattr(use, name)) is not None:
            found[name] = int(value)
    if use.total_time is not None:
        found["total_time"] = round(use.total_time, 1)
    for slot, figures in sorted(use.gpus.items()):
        for name, value in figures.items():
            number = round(100 * value, 1) if name == "gpu_utilization" else int(value)
            found.setdefault(name, {})[slot] = number
    return found


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


def node_lines(nodes: Mapping[str, NodeUse]) -> list[str]:
    """For people, one line for each node and GPU."""
    lines = []
    for node, use in nodes.items():
        cpu = "" if use.cpus is None else f"{use.cpus:.0f} CPUs"
        time = "" if use.total_time is None else f"{use.total_time / 3600:.2f} h of CPU time"
        limit = "" if use.total_memory is None else f" of {use.total_memory / _GIB:.1f}"
        memory = "" if use.used_memory is None else f"{use.used_memory / _GIB:.1f}{limit} GiB of host memory"
        known = ", ".join(filter(None, (cpu, time, memory)))
        lines.append(f"{node}: {known or 'its CPU time and host memory are not known'}")
        for slot, figures in sorted(use.gpus.items()):
            busy = f"SM {figures['gpu_utilization']:.0%}" if "gpu_utilization" in figures else "SM not known"
            used, total = figures.get("gpu_used_memory", 0.0) / _GIB, figures.get("gpu_total_memory", 0.0) / _GIB
            lines.append(f"  GPU {slot}: {busy}, memory at most {used:.1f} of {total:.1f} GiB")
    return lines
