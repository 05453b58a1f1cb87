"""The report of one job as lines, at the end of `gpucommons run` and of `report --job`. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpucommons.base.periods import spoken_duration
from gpucommons.base.text import gibibytes, memory_text

if TYPE_CHECKING:
    from gpucommons.model.fleet import NodeUse

_GIB = 2**30

Document = Mapping[str, Any]


def job_lines(job: Document) -> Iterator[str]:
    """`job` is that of the API's document."""
    yield _title(job)
    yield from figure_lines(job)


def figure_lines(job: Document) -> Iterator[str]:
    """What was billed, in one line, and the hints."""
    total = job["total"]
    parts = [f"{total['held_gpu_hours']:.3f} GPU-hours"]
    if job["busy_ratio"] is not None:
        parts.append(f"GPU busy {job['busy_ratio']:.0%} of the time")
        parts.append(f"SM {total['efficiency_ratio'] or 0:.0%}")
    if job["peak_memory_bytes"] is not None:
        peak, asked = job["peak_memory_bytes"], job["asked_memory_bytes"]
        used = gibibytes(peak) if asked is None else f"{memory_text(peak, asked)} of {memory_text(asked)} asked"
        parts.append(f"peak memory {used}")
    if total["energy_kwh"] is not None:
        parts.append(f"{total['energy_kwh']:.3f} kWh")
    if total.get("cost") is not None:
        parts.append(money_text(total["cost"], job.get("currency", "")))
    if total.get("co2_g") is not None:
        parts.append(f"{co2_text(total['co2_g'])} CO2")
    yield ", ".join(parts)
    yield from hint_lines(job["hints"])
    if job.get("dashboard_url"):
        yield f"dashboard: {job['dashboard_url']}"


def hint_lines(hints: Iterable[str]) -> list[str]:
    return [f"hint: {hint}" for hint in hints]


def slot_names(names: list[str]) -> str:
    return f"GPU {names[0]}" if len(names) == 1 else f"GPUs {', '.join(names)}"


def co2_text(grams: float) -> str:
    return f"{grams / 1000:.1f} kg" if grams >= 1000 else f"{grams:.1f} g"


def money_text(cost: float, currency: str) -> str:
    return f"{cost:.2f} {currency}".rstrip()


def _title(job: Document) -> str:
    waited = "" if job["waited_s"] is None else f"waited {spoken_duration(job['waited_s'])}, "
    ran = "ran" if job["ran_s"] is None else f"ran {spoken_duration(job['ran_s'])}"
    names = [slot["name"] for slot in job["slots"].values()]
    when = "" if job["first_unix_s"] is None else f", {_time(job['first_unix_s'])} to {_time(job['last_unix_s'])}"
    return f"{job['id']} of {', '.join(job['users'])}: {waited}{ran} on {slot_names(names)}{when}"


def _time(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s).strftime("%Y-%m-%d %H:%M:%S")


def node_lines(nodes: "Mapping[str, NodeUse]") -> list[str]:
    """For people, one line for each node and GPU: what the job used, and its part of what it was given."""
    lines = []
    for node, use in nodes.items():
        cpu = "" if use.cpus is None else f"{use.cpus:.0f} CPUs"
        given_s = (use.cpus or 0.0) * (use.run_time or 0.0)
        time = "" if use.total_time is None else f"{use.total_time / 3600:.2f} h of CPU time"
        time += _part(use.total_time, given_s) if time else ""
        limit = "" if use.total_memory is None else f" of {use.total_memory / _GIB:.1f}"
        memory = "" if use.used_memory is None else f"at most {use.used_memory / _GIB:.1f}{limit} GiB of host memory"
        memory += _part(use.used_memory, use.total_memory) if memory else ""
        figures_text = ", ".join(filter(None, (cpu, time, memory)))
        lines.append(f"{node}: {figures_text or 'its CPU time and host memory are not known'}")
        for slot, figures in sorted(use.gpus.items()):
            busy = f"SM {figures['gpu_utilization']:.0%}" if "gpu_utilization" in figures else "SM not known"
            used, total = figures.get("gpu_used_memory", 0.0), figures.get("gpu_total_memory", 0.0)
            amount = f"memory at most {used / _GIB:.1f} of {total / _GIB:.1f} GiB{_part(used, total)}"
            lines.append(f"  GPU {slot}: {busy}, {amount}")
    return lines


def _part(used: float | None, given: float | None) -> str:
    return f" ({used / given:.0%})" if used is not None and given else ""
