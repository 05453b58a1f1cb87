"""What a batch job used on each of its nodes, from Prometheus: for `report --job`, and for the comments of Slurm."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from gpucommons.base.address import host_of
from gpucommons.faces.fleet.queries import Sample
from gpucommons.faces.fleet.reader import FleetSource
from gpucommons.model.fleet import NodeUse
from gpucommons.rules.job_hints import JobOutcome, job_hints

_LABELS: Final = ("instance", "node", "slot")
# Series of a job exist only while it runs: the window may be long.
_WINDOW: Final = "30d"
# The metric of each figure, and how its samples become one number. Those of GPUs have the label `slot`.
_FIGURES: Final = {
    "gpu_utilization": ("avg", "gpucommons_job_gpu_sm_ratio"),
    "gpu_used_memory": ("max", "gpucommons_job_gpu_memory_bytes"),
    "gpu_total_memory": ("max", "gpucommons_job_gpu_memory_total_bytes"),
    "cpus": ("max", "gpucommons_job_cpus"),
    "total_time": ("max", "gpucommons_job_cpu_seconds_total"),
    "used_memory": ("max", "gpucommons_job_memory_bytes"),
    "total_memory": ("max", "gpucommons_job_memory_limit_bytes"),
    "run_time": ("max", "gpucommons_job_run_seconds"),
}


def job_queries(job: str, selector: str = "") -> dict[str, str]:
    """The PromQL of each figure. `selector` are further label matchers, such as cluster="a"."""
    if not re.fullmatch(r"[0-9_]{1,40}", job):
        raise ValueError(f"{job!r} is not the id of a Slurm job: a number such as 4711")
    matchers = ",".join(filter(None, (f'job_id="{job}"', selector)))
    return {
        name: f"{how} by ({', '.join(_LABELS)}) ({how}_over_time({metric}{{{matchers}}}[{_WINDOW}]))"
        for name, (how, metric) in _FIGURES.items()
    }


async def read_job_nodes(source: FleetSource, job: str) -> dict[str, NodeUse]:
    """Raises FleetError, or ValueError for a wrong id."""
    return job_nodes(await source.ask_all(job_queries(job, source.selector), _LABELS))


def job_nodes(answers: Mapping[str, Sequence[Sample]]) -> dict[str, NodeUse]:
    """By the name of the node: the label `node`, as `gpucommons slurm targets` sets it, else the host of `instance`."""
    use_of_node: dict[str, NodeUse] = {}
    for name, samples in answers.items():
        for labels, value in samples:
            node = labels.get("node") or host_of(labels.get("instance", ""))
            if value is None or not node:
                continue
            use = use_of_node.setdefault(node, NodeUse())
            if slot := labels.get("slot"):
                use.gpus.setdefault(slot, {})[name] = value
            elif hasattr(use, name):
                setattr(use, name, value)
    return dict(sorted(use_of_node.items()))


def node_hints(nodes: Mapping[str, NodeUse]) -> tuple[str, ...]:
    """Hints for the GPUs of all nodes. The ledger of one node has only those of that node."""
    gpus = [figures for use in nodes.values() for figures in use.gpus.values()]
    if any("gpu_utilization" not in figures for figures in gpus):
        return ()
    held_s = sum(len(use.gpus) * (use.run_time or 0.0) for use in nodes.values())
    used = sum(1 for figures in gpus if figures["gpu_utilization"])
    return job_hints(JobOutcome(held_s, len(gpus), used))
