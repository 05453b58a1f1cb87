"""Prolog, epilog and task prolog: what Slurm's daemons run for every job. They end with status 0, whatever happens.

A prolog that fails drains the node, and one that is slow delays every job. So these write or remove one file, import
nothing of the package, and take about as long as Python's own start. What goes wrong is one line of syslog.

The prolog (root, on each node of the job) writes DIRECTORY/JOBID for a job with GPUs; the epilog removes it. The agent
reads the directory. No agent has to run at that time: one that starts later finds the jobs that run.

The task prolog (the job's user, before each task and batch script) prints lines for Slurm: `export NAME=VALUE` changes
the environment of the task, `print TEXT` writes into the job's output. Where a day job takes the GPU of a suspended
night job, it waits until the memory of that job has left the GPU. Where jobs with shards run under MPS, it limits their
memory to their shards.
"""

from __future__ import annotations

import os
import sys
import time

# Importing typing would take as long as all the rest. Type checkers take this for true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

DIRECTORY = "/run/gpucommons-slurm"
# The agent's list of suspended jobs, for the task prolog: one line each, "JOB STAGE SENTENCE".
SUSPENDED_FILE = "slurm-suspended"
HOOKS = ("prolog", "epilog", "task-prolog")
_AGENT_DIRECTORY = "/run/gpucommons"
_API_SOCKET = "api.sock"
_LOOK_S = 0.2
# The slowest known case: 140 GB leave a GPU at 2 GB/s.
_MAX_WAIT_S = 90.0
# Slurm stops a job 2 s after it has begun to suspend it. A job that the agent does not list by then is not suspended.
_NOTICED_S = 8.0
_MAX_FILE_CHARACTERS = 4096
_MAX_JOBS = 1024
_MAX_INDEX = 65_536
_PARKED = "parked"
_KEPT = "kept"


def main(arguments: Sequence[str]) -> None:
    """Never raises, never fails. `arguments` begin with the name of the hook."""
    hook = arguments[0]
    try:
        options = _options(arguments[1:])
        directory, agent = options.get("directory", DIRECTORY), options.get("agent-directory", _AGENT_DIRECTORY)
        gpu_count = int(options.get("gpus", "0"))
        if hook == "task-prolog":
            for line in task_prolog(os.environ, directory, agent, gpu_count, float(options.get("wait", _MAX_WAIT_S))):
                os.write(1, f"{line}\n".encode())
            for line in memory_limit(os.environ, int(options.get("shard-mib", "0"))):
                os.write(1, f"{line}\n".encode())
            return
        job, gpus = int(os.environ["SLURM_JOB_ID"]), indices(os.environ.get("SLURM_JOB_GPUS", ""), gpu_count)
        # A job without GPUs has no file, nor has one that began before gpucommons was installed.
        if hook == "epilog" and os.path.exists(f"{directory}/{job}"):
            os.unlink(f"{directory}/{job}")
        elif hook == "prolog" and gpus:
            prolog(os.environ, job, gpus, directory)
            if not _agent_answers(agent):
                _log(f"job {job}: no agent answers at {agent}/{_API_SOCKET}; the job runs without it")
    except KeyError as name:
        _log(f"{hook}: the variable {name} is not set; Slurm sets it where it runs this hook")
    except Exception as error:
        _log(f"{hook}: {type(error).__name__}: {error}; the job is not affected")


def _options(arguments: Sequence[str]) -> dict[str, str]:
    """`--name value` pairs. The scripts that call this are printed by `gpucommons slurm config`."""
    names = [name.removeprefix("--") for name in arguments[::2]]
    return dict(zip(names, arguments[1::2], strict=True))


def prolog(environment: Mapping[str, str], job: int, gpus: Sequence[int], directory: str) -> None:
    """Writes the file of the job. A requeued job writes it again."""
    os.makedirs(directory, mode=0o755, exist_ok=True)
    lines = (
        f"uid {int(environment['SLURM_JOB_UID'])}",
        f"gpus {','.join(map(str, gpus))}",
        f"node {environment.get('SLURMD_NODENAME', '')}",
    )
    # What begins with a dot is not finished, and not read.
    unfinished = f"{directory}/.{job}"
    with open(unfinished, "w", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))
    os.chmod(unfinished, 0o644)
    os.replace(unfinished, f"{directory}/{job}")


def task_prolog(
    environment: Mapping[str, str],
    directory: str,
    agent_directory: str,
    gpu_count: int,
    wait_s: float,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """The lines for Slurm. Without `gpu_count` there is no pair of day and night, and nothing to do."""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    given = environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS") or visible
    gpus, begun_s = frozenset(indices(given, gpu_count)), now()
    if not gpu_count or not gpus:
        return
    renamed = ",".join(map(str, indices(visible, gpu_count)))
    if renamed and renamed != visible:
        yield f"export CUDA_VISIBLE_DEVICES={renamed}"
    jobs = {job: frozenset(indices(fields.get("gpus", ""))) for job, fields in read_jobs(directory).items()}
    others = {job for job, taken in jobs.items() if taken & gpus and job != int(environment["SLURM_JOB_ID"])}
    while others and now() - begun_s < wait_s:
        stages = _read_suspended(f"{agent_directory}/{SUSPENDED_FILE}")
        for job in list(others):
            stage, sentence = stages.get(job, ("", ""))
            gone = stage == _PARKED or not os.path.exists(f"{directory}/{job}")
            if stage == _KEPT:
                yield f"print gpucommons: {sentence}"
            if gone or stage == _KEPT or (not stage and now() - begun_s >= _NOTICED_S):
                others.discard(job)
        if others:
            sleep(_LOOK_S)
    for job in sorted(others):
        yield f"print gpucommons: the memory of suspended job {job} is still on a GPU of this job after {wait_s:g} s"


def memory_limit(environment: Mapping[str, str], shard_mib: int) -> Iterator[str]:
    """The limit of a job with shards under MPS; without MPS the driver ignores it. `shard_mib`: MiB of one shard."""
    shards = parse_decimal(environment.get("SLURM_SHARDS_ON_NODE", ""))
    gpus = len(indices(environment.get("CUDA_VISIBLE_DEVICES", "")))
    if shards and shard_mib and gpus:
        limit = -(-shards // gpus) * shard_mib
        yield f"export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={','.join(f'{index}={limit}M' for index in range(gpus))}"


def indices(text: str, gpu_count: int = 0) -> list[int]:
    """Those in a list such as 0,2-3, each once; a part that is none of these, such as a UUID, is left out.

    Where each of `gpu_count` GPUs is listed twice, as type day and as type night, the second one of GPU 0 has the index
    `gpu_count`: it is counted as GPU 0.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = parse_decimal(first), parse_decimal(last or first)
        if low is not None and high is not None and high < _MAX_INDEX:
            numbers.update(range(low, high + 1))
    return sorted({index % gpu_count for index in numbers} if gpu_count else numbers)


def read_jobs(directory: str) -> dict[int, dict[str, str]]:
    """What the prologs wrote of each job: uid, gpus and node. Raises OSError if the directory cannot be read."""
    jobs: dict[int, dict[str, str]] = {}
    for job in sorted(job for job in map(parse_decimal, os.listdir(directory)) if job is not None)[-_MAX_JOBS:]:
        try:
            with open(f"{directory}/{job}", encoding="utf-8", errors="replace") as file:
                jobs[job] = dict(
                    line.partition(" ")[::2] for line in file.read(_MAX_FILE_CHARACTERS).rstrip("\n").split("\n")
                )
        except OSError:
            # It ended after the directory was listed.
            continue
    return jobs


def _read_suspended(path: str) -> dict[int, tuple[str, str]]:
    """The stage and sentence of each suspended job; empty without an agent."""
    try:
        with open(path, encoding="utf-8") as file:
            rows = [line.rstrip("\n").split(" ", 2) for line in file]
    except OSError:
        return {}
    return {int(job): (stage, sentence) for job, stage, sentence in rows}


def parse_decimal(text: str) -> int | None:
    """As that of base/text.py, which is not imported here."""
    return int(text) if 0 < len(text) <= 20 and not text.strip("0123456789") else None


def _agent_answers(directory: str) -> bool:
    # The module below `socket`, which takes a third of a hook's time to import.
    import _socket

    probe = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    probe.settimeout(0.02)
    try:
        probe.connect(f"{directory}/{_API_SOCKET}")
    except OSError:
        return False
    finally:
        probe.close()
    return True


def _log(line: str) -> None:
    import syslog

    syslog.openlog("gpucommons-slurm", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_WARNING, line)
    # Slurm's daemons log what a hook prints on stderr only at a high debug level.
    os.write(2, f"gpucommons slurm: {line}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1:])
