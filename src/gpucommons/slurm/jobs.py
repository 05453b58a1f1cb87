"""Slurm's jobs on this node: the prolog's files, and what `scontrol` says of each job.

A file names a job's user and GPUs. The rest is asked for once per job, since every question is work for slurmctld:
its shards, CPUs and memory. Its state is asked for where that matters: when its processes are stopped, and twice an
hour, so that a job whose epilog never ran does not hold its GPUs for ever.
"""

import math
import re
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Final, NamedTuple

from gpucommons.base.files import replace_state_file
from gpucommons.base.text import parse_decimal, parse_memory
from gpucommons.model.fleet import JobRun
from gpucommons.model.workloads import JobHostReading, JobHostUse, JobMappingReading, JobPlace, MappedJob
from gpucommons.slurm.hooks import SUSPENDED_FILE, indices, read_jobs
from gpucommons.sources.containers.usage import cgroup_usage
from gpucommons.sources.source import SourceAbsent, SourceError

_ANSWER_S: Final = 5.0
_ASK_AGAIN_S: Final = 1800.0
_RETRY_S: Final = 30.0


class SlurmError(Exception):
    """Slurm did not answer: one line."""


class UnknownJob(SlurmError):
    """Slurm answered that it has no such job, or has forgotten it."""


AskSlurm = Callable[[Sequence[str]], str]
"""Runs one of Slurm's programs with its arguments and returns its output. Raises SlurmError."""


def ask_slurm(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_S, errors="replace"
        )
    except FileNotFoundError:
        raise SlurmError(f"{command[0]} is not installed; install Slurm's client commands on this machine") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{command[0]} gave no answer: {error}") from error
    if done.returncode:
        # The last line has the cause; those before it say what was tried.
        line = done.stderr.strip().rpartition("\n")[2] or f"status {done.returncode}"
        raise (UnknownJob if "Invalid job id" in done.stderr else SlurmError)(f"{' '.join(command)}: {line}")
    return done.stdout


# What `scontrol` prints.

_FIELD: Final = re.compile(r"(?:^|\s)([A-Za-z/:_]+)=(\S*)")
_GRES: Final = re.compile(r"(gpu|shard)(?::[^:,()]+)??:(\d+)(?:\(([^)]*)\))?")
_RUN_TIME: Final = re.compile(r"\sRunTime=(?:(\d+)-)?(\d+):(\d+):(\d+)")
_GPUS: Final = re.compile(r"gres/gpu=(\d+)|JOB_GRES=gpu[^ ]*?:(\d+)")
_VERSION: Final = re.compile(r"(\d{1,4})\.(\d{1,4})")
_NODES: Final = re.compile(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[\]]*)")
_ENDED: Final = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")
)


class JobDetails(NamedTuple):
    """`shards` are those on each GPU of the node, by index; empty for whole GPUs. None is not known."""

    has_ended: bool = False
    cpus: int | None = None
    memory_bytes: int | None = None
    shards: Mapping[int, int] = {}


def parse_job(text: str, node: str, gpus: Collection[int]) -> JobDetails:
    """From `scontrol show job -d -o`: whether it has ended, and what it has on these GPUs of this node.

    The name and the command of a job are in it as its user wrote them, and may look like fields. The last task of an
    array has the id of the array, for which all of its tasks are printed. So of several states one that has not ended
    counts, and of several shares of these GPUs the smallest. Raises SlurmError.
    """
    rows = _FIELD.findall(text)
    states = [value for name, value in rows if name == "JobState"]
    if not states:
        raise SlurmError("scontrol's answer has no JobState")
    # The details of each group of nodes follow each other: Nodes= CPU_IDs= Mem= GRES=
    groups = (dict(rows[place : place + 4]) for place, (name, nodes) in enumerate(rows) if name == "Nodes")
    here = [(_shards(group.get("GRES", "")), group) for group in groups if _includes(group["Nodes"], node)]
    own = [share for share in here if share[0].keys() <= set(gpus)]
    shards, group = min(own, key=lambda share: sum(share[0].values()) or math.inf, default=({}, {}))
    cpus = len(indices(group.get("CPU_IDs", "")))
    return JobDetails(_ENDED.issuperset(states), cpus or None, _memory_bytes(group.get("Mem", "")), shards)


def _includes(nodes: str, node: str) -> bool:
    """Whether a list such as gpu[01-03,7],login has this node. One pair of brackets in each name, as is usual.

    gpu1 counts as gpu01.
    """
    for before, ranges, after in _NODES.findall(nodes):
        number = node.removeprefix(before).removesuffix(after)
        if node == f"{before}{number}{after}" and (number == ranges or parse_decimal(number) in indices(ranges)):
            return True
    return False


def parse_run(text: str) -> JobRun:
    """From `scontrol show job -o`."""
    time, gpus = _RUN_TIME.search(text), _GPUS.search(text)
    days, hours, minutes, seconds = (int(part or 0) for part in (time.groups() if time else (0, 0, 0, 0)))
    run_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return JobRun(run_s, int(gpus[1] or gpus[2]) if gpus is not None else None)


def keeps_case(text: str) -> bool:
    """From `sacctmgr --version`. Before 23.02 it writes comments of jobs in lower case, which destroys base64."""
    version = _VERSION.search(text)
    return version is None or (int(version[1]), int(version[2])) >= (23, 2)


def shards_per_gpu(text: str) -> int:
    """From `scontrol show node -o`; 0 where the node has none."""
    gres = next((value for name, value in _FIELD.findall(text) if name == "Gres"), "")
    counts = {"gpu": 0, "shard": 0}
    for kind, count, _ in _GRES.findall(gres):
        counts[kind] += int(count)
    return counts["shard"] // max(1, counts["gpu"])


def _shards(gres: str) -> Mapping[int, int]:
    for kind, count, place in _GRES.findall(gres):
        if kind != "shard":
            continue
        if place.startswith("IDX:"):
            gpus = indices(place.removeprefix("IDX:"))
            return {gpu: int(count) // len(gpus) for gpu in gpus} if gpus else {}
        # From Slurm 23.02 on: the shards in use of those on each GPU, (2/4,0/4).
        used = [parse_decimal(part.partition("/")[0]) for part in place.split(",")]
        return {gpu: shards for gpu, shards in enumerate(used) if shards}
    return {}


def _memory_bytes(text: str) -> int | None:
    """8000 is in MiB, and 2G in GiB."""
    try:
        return parse_memory(f"{text}i" if text[-1:].isalpha() else f"{text}Mi")
    except ValueError:
        return None


# The source.


class _Answer(NamedTuple):
    """What Slurm said of a job when it last answered. `problem` is why it did not answer now.

    `shares` are the parts of the GPUs that its shards are, by index; the job has all of the others.
    """

    details: JobDetails = JobDetails()
    shares: Mapping[int, Fraction] = {}
    ask_again_s: float = float("-inf")
    problem: str = ""


class SlurmJobsReader:
    """The source of Slurm's jobs. The reading is the same object while nothing changes."""

    def __init__(
        self,
        directory: Path,
        ask: AskSlurm = ask_slurm,
        monotonic: Callable[[], float] = time.monotonic,
        cgroupfs: Path = Path("/sys/fs/cgroup"),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._cgroupfs = cgroupfs
        self._ask = ask
        self._monotonic = monotonic
        self._wall = wall
        self._answers: dict[int, _Answer] = {}
        self._reading = JobMappingReading()

    def read(self) -> JobMappingReading:
        try:
            files = read_jobs(str(self._directory))
        except FileNotFoundError:
            raise SourceAbsent(
                f"{self._directory} does not exist: no job with GPUs has begun since the node booted",
                "if jobs run, set Prolog= in slurm.conf as 'gpucommons slurm config' prints it",
            ) from None
        except OSError as error:
            raise SourceError("unreadable", f"{self._directory}: {error.strerror}") from error
        gpus = {job: indices(fields.get("gpus", "")) for job, fields in files.items()}
        self._answers = {job: self._answer(job, fields.get("node", ""), gpus[job]) for job, fields in files.items()}
        jobs: dict[JobPlace, tuple[MappedJob, ...]] = {}
        for job, answer in self._answers.items():
            uid = parse_decimal(files[job].get("uid", ""))
            for gpu in () if answer.details.has_ended else gpus[job]:
                mapped = MappedJob(str(job), uid, answer.shares.get(gpu, Fraction(1)))
                jobs[gpu, None] = (*jobs.get((gpu, None), ()), mapped)
        reading = JobMappingReading(jobs, tuple(answer.problem for answer in self._answers.values() if answer.problem))
        if reading != self._reading:
            self._reading = reading
        return self._reading

    def read_hosts(self) -> JobHostReading:
        """CPU time and host memory of the jobs that `read` has found, from their cgroups. Asks Slurm nothing."""
        uses = {}
        for job, answer in self._answers.items():
            if not answer.details.has_ended:
                used = cgroup_usage(self._cgroupfs, self._directories(job))
                uses[str(job)] = JobHostUse(
                    answer.details.cpus, answer.details.memory_bytes, *used[:2], run_s=self._run_s(job)
                )
        return JobHostReading(uses)

    def _run_s(self, job: int) -> float | None:
        """Since its prolog; None if it has just ended."""
        try:
            return max(0.0, self._wall() - (self._directory / str(job)).stat().st_mtime)
        except OSError:
            return None

    def _directories(self, job: int) -> dict[str, str]:
        """Those of a job below the cgroup file system: of version 2, and of each controller of version 1."""
        patterns = {
            "": f"system.slice/*slurmstepd.scope/job_{job}",
            "cpuacct": f"cpuacct/slurm*/uid_*/job_{job}",
            "memory": f"memory/slurm*/uid_*/job_{job}",
        }
        matches = ((name, next(self._cgroupfs.glob(pattern), None)) for name, pattern in patterns.items())
        return {name: str(path.relative_to(self._cgroupfs)) for name, path in matches if path is not None}

    def _answer(self, job: int, node: str, gpus: Collection[int]) -> _Answer:
        now_s = self._monotonic()
        before = self._answers.get(job, _Answer())
        if now_s < before.ask_again_s:
            return before
        try:
            details = parse_job(self._ask(["scontrol", "show", "job", "-d", "-o", str(job)]), node, gpus)
            whole = shards_per_gpu(self._ask(["scontrol", "show", "node", "-o", node])) if details.shards else 0
        except UnknownJob:
            return _Answer(JobDetails(has_ended=True), {}, now_s + _ASK_AGAIN_S)
        except SlurmError as error:
            return _Answer(before.details, before.shares, now_s + _RETRY_S, f"job {job}: {error}")
        shares = {gpu: Fraction(min(shards, whole), whole) for gpu, shards in details.shards.items() if whole}
        return _Answer(details, shares, now_s + _ASK_AGAIN_S)


# Which jobs Slurm has suspended, and the file from which the next job learns what became of their GPU memory.
#
# slurmctld changes the state of a job before it has its processes stopped or continued. So a job that is called
# suspended after its processes were stopped was not resumed before: its resumption is still to come, and will continue
# them.


def is_suspended(job: str, ask: AskSlurm = ask_slurm) -> bool | None:
    """None where Slurm does not answer."""
    try:
        # For the id of an array, which its last task has, there is a line for each task.
        return f"{job} SUSPENDED" in ask(["squeue", "-h", "-t", "all", "-o", "%A %T", "-j", job]).split("\n")
    except UnknownJob:
        return False
    except SlurmError:
        return None


def publish_suspended(directory: Path, states: Mapping[str, tuple[str, str]]) -> None:
    """Writes stage and sentence of each suspended job into the agent's directory, for the task prolog of any user."""
    lines = (f"{job} {stage} {' '.join(sentence.split())}\n" for job, (stage, sentence) in sorted(states.items()))
    # Where it cannot be written, the next job waits a few seconds and begins.
    with suppress(OSError):
        replace_state_file(directory / SUSPENDED_FILE, "".join(lines).encode(), mode=0o644)
