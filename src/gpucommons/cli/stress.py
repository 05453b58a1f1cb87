"""`gpucommons stress`: keep one GPU busy at a chosen utilisation, to test dashboards and alerts."""

import os
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from gpucommons.base.text import Printable, printable
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.options import AsJson
from gpucommons.cli.output import show, show_error, show_line
from gpucommons.cli.stress_load import BackendMissing, Summary, UtilizationController, Worker, choose, worker_of
from gpucommons.cli.stress_load import stress as run_stress
from gpucommons.cli.suggestions import gpus
from gpucommons.faces.documents.values import indent, round_value
from gpucommons.sources.nvml import queries
from gpucommons.sources.nvml.calls import Handle


class Backend(StrEnum):
    TORCH = "torch"
    CUPY = "cupy"


class _Clock:
    def now_s(self) -> float:
        return time.monotonic()

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)


def stress(
    device: Annotated[
        int, typer.Option(min=0, metavar="N", help="Index of the GPU, as in nvidia-smi.", autocompletion=gpus)
    ],
    target_util: Annotated[
        int, typer.Option("--target-util", min=10, max=100, metavar="10..100", help="Utilisation to reach, in percent.")
    ] = 90,
    duration: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Length of the test.")] = 60,
    backend: Annotated[
        Backend | None, typer.Option(help="Library to use. Default: the installed one.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Keep a GPU busy at a chosen utilisation, to test alerts.

    The utilisation is measured and corrected every second. Ctrl-C stops it.
    """
    try:
        summary = _stress(device, target_util, duration, backend, show_error if as_json else show_line)
    except KeyboardInterrupt:
        # Covers the import of the library too, which takes seconds.
        summary = None
    if as_json:
        document = {
            "gpu_index": device,
            "target_ratio": target_util / 100,
            "stopped": summary is None,
            "elapsed_s": None if summary is None else round(summary.elapsed_s, 1),
            "utilization_ratio": None if summary is None else round_value(summary.mean, 4),
        }
        show(indent(document))
    elif summary is None:
        show_line(printable("stopped"))
    else:
        reached = "unknown (no reading from the driver)" if summary.mean is None else f"{summary.mean:.1%}"
        show_line(printable(f"done after {summary.elapsed_s:.0f} s; utilisation in the second half: {reached}"))


def _stress(
    device: int, target_percent: int, duration_s: float, backend: Backend | None, say: Callable[[Printable], None]
) -> Summary:
    try:
        with queries.open_session():
            gpu = _gpu_at(device)
            library = choose(backend)
            # Set before the library is imported: it then uses the GPU that is measured.
            os.environ["CUDA_VISIBLE_DEVICES"] = queries.uuid_of(gpu)
            worker = worker_of(library)
            name = f"GPU {device} ({queries.name_of(gpu)})"
            say(printable(f"{name}, target {target_percent} %, {duration_s:g} s, {library}; stop with Ctrl-C"))
            return _run_with_progress(target_percent / 100, duration_s, worker, lambda: _utilization(gpu))
    except queries.DriverError as error:
        raise CommandError(f"the NVIDIA driver does not answer: {error}; run stress on a machine with a GPU") from error
    except BackendMissing as error:
        raise CommandError(str(error)) from error


def _gpu_at(index: int) -> Handle:
    count = queries.count_gpus()
    if not 0 <= index < count:
        present = "none" if count == 0 else f"GPUs 0 to {count - 1}" if count > 1 else "only GPU 0"
        raise CommandError(f"--device: no GPU {index}; this machine has {present}")
    return queries.gpu_at(index)


def _utilization(gpu: Handle) -> float | None:
    try:
        return queries.utilization(gpu)
    except queries.DriverError:
        return None


def _run_with_progress(
    target: float, duration_s: float, worker: Worker, measure: Callable[[], float | None]
) -> Summary:
    # Imported here: importing rich takes a tenth of a second, and an error comes before it.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        TextColumn("target {task.fields[target]}  measured {task.fields[measured]}  duty {task.fields[duty]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=duration_s, target=f"{target:4.0%}", measured="   ?", duty="   ?")

        def show(elapsed_s: float, control: UtilizationController) -> None:
            measured = "   ?" if control.measured is None else f"{control.measured:4.0%}"
            progress.update(bar, completed=elapsed_s, measured=measured, duty=f"{control.duty:4.0%}")

        return run_stress(target, duration_s, worker, measure, _Clock(), show)
