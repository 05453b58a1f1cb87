"""Slurm's jobs on this node: the prolog's files, and what `scontrol` says of each job.

A file names a job's user and GPUs. The rest is asked for once per job, since every question is work for slurmctld:
its shards, CPUs and memory. Its state is asked for where that matters: when its processes are stopped, and twice an
hour, so that a job whose epilog never ran does not hold its GPUs for ever.
"""

import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Final, NamedTuple

from gpucommons.base.files import replace_state_file
from gpucommons.base.text import parse_decimal, parse_memory
from gpucommons.model.fleet import JobRun
from gpucommons.model.workloads import JobHostReading, JobHostUse, JobMappingReading, JobPlace, MappedJob
from gpucommons.slurm.hooks import SUSPENDED_FILE, fields_of_file, indices
from gpucommons.sources.containers.usage import cgroup_usage
from gpucommons.sources.source import SourceAbsent, SourceError

_ANSWER_S: Final = 5.0
_ASK_AGAIN_S: Final = 1800.0
_RETRY_S: Final = 30.0
_MAX_JOBS: Final = 1024


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
        line = " ".join(done.stderr.split()) or f"status {done.returncode}"
        raise (UnknownJob if "Invalid job id" in line else SlurmError)(f"{' '.join(command)}: {line}")
    return done.stdout


# What `scontrol` prints.

_FIELD: Final = re.compile(r"(?:^|\s)([A-Za-z/:_]+)=(\S*)")
_GRES: Final = re.compile(r"(gpu|shard)(?::[^:,()]+)??:(\d+)(?:\(([^)]*)\))?")
_RUN_TIME: Final = re.compile(r"\sRunTime=(?:(\d+)-)?(\d+):(\d+):(\d+)")
_GPUS: Final = re.compile(r"gres/gpu=(\d+)|JOB_GRES=gpu[^ ]*?:(\d+)")
_ENDED: Final = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")
)
SUSPENDED: Final = "SUSPENDED"


@dataclass(frozen=True, slots=True)
class JobDetails:
    """`shards` are those on each GPU of the node, by index; empty for whole GPUs. None is not known."""

    state: str
    cpus: int | None = None
    memory_bytes: int | None = None
    shards: Mapping[int, int] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED


def parse_job(text: str, node: str) -> JobDetails:
    """From `scontrol show job -d -o`: the job's state, and what it has on this node. Raises SlurmError."""
    rows = _FIELD.findall(text)
    state = next((value for name, value in rows if name == "JobState"), "")
    if not state:
        raise SlurmError("scontrol's answer has no JobState")
    here: dict[str, str] = {}
    for position, (name, value) in enumerate(rows):
        # The details of each group of nodes follow each other: Nodes= CPU_IDs= Mem= GRES=
        if name == "Nodes" and (not node or node in host_names(value)):
            here = dict(rows[position : position + 4])
            break
    cpus = len(indices(here.get("CPU_IDs", "")))
    return JobDetails(state, cpus or None, _memory_bytes(here.get("Mem", "")), _shards(here.get("GRES", "")))


def parse_run(text: str) -> JobRun:
    """From `scontrol show job -o`."""
    time, gpus = _RUN_TIME.search(text), _GPUS.search(text)
    days, hours, minutes, seconds = (int(part or 0) for part in (time.groups() if time else (0, 0, 0, 0)))
    run_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return JobRun(run_s, int(gpus[1] or gpus[2]) if gpus is not None else None)


def shards_per_gpu(text: str) -> int | None:
    """From `scontrol show node -o`; None where the node has none."""
    gres = next((value for name, value in _FIELD.findall(text) if name == "Gres"), "")
    counts = {"gpu": 0, "shard": 0}
    for kind, count, _ in _GRES.findall(gres):
        counts[kind] += int(count)
    return counts["shard"] // counts["gpu"] if counts["gpu"] and counts["shard"] else None


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


_BRACKETS: Final = re.compile(r"([^,\[\]]*)\[([^\]]*)\]([^,\[\]]*)|([^,\[\]]+)")


def host_names(expression: str) -> list[str]:
    """The nodes of Slurm's list: gpu[01-03,7],login. One pair of brackets in each name, as slurm.conf mostly has."""
    names: list[str] = []
    for before, inside, after, plain in _BRACKETS.findall(expression):
        if plain:
            names.append(plain)
        for part in filter(None, inside.split(",")):
            first, _, last = part.partition("-")
            low, high = parse_decimal(first.lstrip("0") or "0"), parse_decimal((last or first).lstrip("0") or "0")
            if low is not None and high is not None and high - low < 65_536:
                names += (f"{before}{number:0{len(first)}}{after}" for number in range(low, high + 1))
    return names


# The prolog's files.


class JobFile(NamedTuple):
    id: str
    uid: int | None
    gpus: tuple[int, ...]
    node: str


def read_job_files(directory: Path) -> list[JobFile]:
    """Those that can be read, by number. Raises OSError if the directory cannot."""
    numbers = sorted(number for path in directory.iterdir() if (number := parse_decimal(path.name)) is not None)
    jobs = []
    for number in numbers[:_MAX_JOBS]:
        # Empty: the job ended after the directory was listed.
        if fields := fields_of_file(f"{directory}/{number}"):
            gpus = tuple(indices(fields.get("gpus", "")))
            jobs.append(JobFile(str(number), parse_decimal(fields.get("uid", "")), gpus, fields.get("node", "")))
    return jobs


class _Answer(NamedTuple):
    """What Slurm said of a job when it was last asked; None: nothing yet. `problem` is why it did not answer."""

    details: JobDetails | None = None
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
    ) -> None:
        self._directory = directory
        self._cgroupfs = cgroupfs
        self._ask = ask
        self._monotonic = monotonic
        self._answers: dict[str, _Answer] = {}
        self._shards: dict[str, int | None] = {}
        self._reading = JobMappingReading()

    def read(self) -> JobMappingReading:
        try:
            files = read_job_files(self._directory)
        except FileNotFoundError:
            raise SourceAbsent(
                f"{self._directory} does not exist: no job with GPUs has begun since the node booted",
                "if jobs run, set Prolog= in slurm.conf as 'gpucommons slurm config' prints it",
            ) from None
        except OSError as error:
            raise SourceError("unreadable", f"{self._directory}: {error.strerror}") from error
        self._answers = {job.id: self._answers[job.id] for job in files if job.id in self._answers}
        jobs: dict[JobPlace, tuple[MappedJob, ...]] = {}
        problems: list[str] = []
        for job in files:
            details, _, problem = self._details_of(job)
            problems += filter(None, [problem])
            if details is not None and details.has_ended:
                continue
            for gpu in job.gpus:
                mapped = MappedJob(job.id, job.uid, self._share(job, gpu, details))
                jobs[gpu, None] = (*jobs.get((gpu, None), ()), mapped)
        reading = JobMappingReading(jobs, tuple(problems))
        if reading != self._reading:
            self._reading = reading
        return self._reading

    def read_hosts(self) -> JobHostReading:
        """CPU time and host memory of the jobs that `read` has found, from their cgroups. Asks Slurm nothing."""
        uses = {}
        for id, answer in self._answers.items():
            if answer.details is not None and not answer.details.has_ended:
                used = cgroup_usage(self._cgroupfs, self._directories(id))
                uses[id] = JobHostUse(answer.details.cpus, answer.details.memory_bytes, *used[:2])
        return JobHostReading(uses)

    def _directories(self, job: str) -> dict[str, str]:
        """Those of a job below the cgroup file system: of version 2, and of each controller of version 1."""
        patterns = {
            "": f"system.slice/*slurmstepd.scope/job_{job}",
            "cpuacct": f"cpuacct/slurm*/uid_*/job_{job}",
            "memory": f"memory/slurm*/uid_*/job_{job}",
        }
        matches = ((name, next(self._cgroupfs.glob(pattern), None)) for name, pattern in patterns.items())
        return {name: str(path.relative_to(self._cgroupfs)) for name, path in matches if path is not None}

    def _details_of(self, job: JobFile) -> "_Answer":
        now_s = self._monotonic()
        answer = self._answers.get(job.id, _Answer())
        if now_s < answer.ask_again_s:
            return answer
        try:
            details = parse_job(self._ask(["scontrol", "show", "job", "-d", "-o", job.id]), job.node)
            answer = _Answer(details, now_s + _ASK_AGAIN_S)
        except UnknownJob:
            answer = _Answer(JobDetails("COMPLETED"), now_s + _ASK_AGAIN_S)
        except SlurmError as error:
            answer = _Answer(answer.details, now_s + _RETRY_S, f"job {job.id}: {error}")
        self._answers[job.id] = answer
        return answer

    def _share(self, job: JobFile, gpu: int, details: JobDetails | None) -> Fraction:
        """The part of the GPU that the job was given."""
        shards = 0 if details is None else details.shards.get(gpu, 0)
        if not shards:
            return Fraction(1)
        if job.node not in self._shards:
            try:
                self._shards[job.node] = shards_per_gpu(self._ask(["scontrol", "show", "node", "-o", job.node]))
            except SlurmError:
                return Fraction(1)
        whole = self._shards[job.node]
        return Fraction(min(shards, whole), whole) if whole else Fraction(1)


# Which jobs Slurm has suspended, and the file from which the next job learns what became of their GPU memory.
#
# slurmctld changes the state of a job before it has its processes stopped or continued. So a job that is called
# suspended after its processes were stopped was not resumed before: its resumption is still to come, and will continue
# them.


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
