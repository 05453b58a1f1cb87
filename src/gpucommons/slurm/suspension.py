"""Which jobs Slurm has suspended, and the file from which the next job learns what became of their GPU memory.

slurmctld changes the state of a job before it has its processes stopped or continued. So a job that is called suspended
after its processes were stopped was not resumed before: its resumption is still to come, and will continue them.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from gpucommons.base.files import replace_state_file
from gpucommons.slurm.hooks import SUSPENDED_FILE
from gpucommons.slurm.jobs import SUSPENDED, AskSlurm, SlurmError, UnknownJob, ask_slurm


def is_suspended(job: str, ask: AskSlurm = ask_slurm) -> bool | None:
    """None where Slurm does not answer."""
    try:
        return ask(["squeue", "-h", "-t", "all", "-o", "%T", "-j", job]).strip() == SUSPENDED
    except UnknownJob:
        return False
    except SlurmError:
        return None


def publisher(directory: Path) -> Callable[[Mapping[str, tuple[str, str]]], None]:
    """Writes stage and sentence of each suspended job into the agent's directory, for the task prolog of any user."""
    path = directory / SUSPENDED_FILE

    def publish(states: Mapping[str, tuple[str, str]]) -> None:
        lines = (f"{job} {stage} {' '.join(sentence.split())}\n" for job, (stage, sentence) in sorted(states.items()))
        # Where it cannot be written, the next job waits a few seconds and begins.
        with suppress(OSError):
            replace_state_file(path, "".join(lines).encode(), mode=0o644)

    return publish
