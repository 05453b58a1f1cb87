"""Files of other programs about GPUs: the jobs of each GPU by a batch system's prolog, and virtual GPUs per GPU.

Each is read when it changes. While one is invalid, the last valid content holds.
"""

import logging
import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from gpucommons.base.text import lines_of
from gpucommons.model.gpu import AllocationRatioReading, AllocationRatios
from gpucommons.model.workloads import JobMappingReading, JobPlace, MappedJob
from gpucommons.sources.source import SourceAbsent, SourceError

# The files in which a batch system's prolog lists the jobs of each GPU: dcgm-exporter's HPC job mapping.
#
# A directory with one file per GPU index (`0`), or per GPU instance of a MIG device (`0.1`), one job id per line. A
# file that is invalid, too large or missing does not affect the others.

_FILE_NAME = re.compile(r"(0|[1-9]\d{0,3})(?:\.(0|[1-9]\d{0,3}))?", re.ASCII)
_MAX_FILES = 1024
_MAX_MAPPING_BYTES = 64 * 1024
_MAX_JOBS = 64
_LONGEST_ID = 256
_FIRST_PERSON = 1000
# Dynamic users of systemd, system users of distributions (slurm is 64030 on Debian), and the user "nobody".
_SYSTEM_UIDS = range(60_000, 65_536)

log = logging.getLogger(__name__)


class JobMappingReader:
    """The reading is the same object while the files do not change."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reading = JobMappingReading()

    def read(self) -> JobMappingReading:
        jobs: dict[JobPlace, tuple[MappedJob, ...]] = {}
        problems: list[str] = []
        for name, place in self._files():
            try:
                jobs_there, problem = _read_file(self._directory / name)
            except FileNotFoundError:
                # The job ended after the directory was listed.
                continue
            except OSError as error:
                jobs_there, problem = (), error.strerror or "cannot be read"
            if jobs_there:
                jobs[place] = jobs_there
            if problem:
                problems.append(f"{self._directory / name}: {problem}")
        reading = JobMappingReading(jobs, tuple(problems))
        if reading != self._reading:
            for line in set(reading.problems) - set(self._reading.problems):
                log.warning("job mapping: %s", line)
            self._reading = reading
        return self._reading

    def _files(self) -> list[tuple[str, JobPlace]]:
        try:
            with os.scandir(self._directory) as entries:
                matches = [(entry.name, _FILE_NAME.fullmatch(entry.name)) for entry in entries]
        except FileNotFoundError:
            raise SourceAbsent(
                f"the job mapping directory {self._directory} does not exist",
                "create it in the prolog of the batch system, or correct [dcgm] hpc_job_mapping_dir",
            ) from None
        except OSError as error:
            raise SourceError("unreadable", f"{self._directory}: {error.strerror}") from error
        places = [(name, (int(m[1]), None if m[2] is None else int(m[2]))) for name, m in matches if m]
        return sorted(places)[:_MAX_FILES]


def _read_file(path: Path) -> tuple[tuple[MappedJob, ...], str]:
    """The jobs, and what is wrong. Does not wait on a pipe or follow a link, which may lead to a secret."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return (), "is not a regular file"
        data = os.read(descriptor, _MAX_MAPPING_BYTES + 1)
    finally:
        os.close(descriptor)
    ids, problem = parse_jobs(data)
    # The owner of a file with several jobs cannot be the user of each of them.
    uid = status.st_uid if len(ids) == 1 and _is_person(status.st_uid) else None
    return tuple(MappedJob(id, uid) for id in ids), problem


def parse_jobs(data: bytes) -> tuple[tuple[str, ...], str]:
    """The job ids in their order without duplicates, and what is wrong with the rest."""
    problem = ""
    if len(data) > _MAX_MAPPING_BYTES:
        problem = f"larger than {_MAX_MAPPING_BYTES} bytes; the rest is ignored"
        data = data[:_MAX_MAPPING_BYTES].rpartition(b"\n")[0]
    lines = [line for line in _lines(data) if line]
    good = tuple(dict.fromkeys(line for line in lines if len(line) <= _LONGEST_ID and line.isprintable()))
    if len(good) > _MAX_JOBS:
        return good[:_MAX_JOBS], problem or f"names more than {_MAX_JOBS} jobs; the rest is ignored"
    if not problem and any(line not in good for line in lines):
        problem = "has lines that are not job ids; they are ignored"
    return good, problem


def _lines(data: bytes) -> Iterator[str]:
    for line in data.split(b"\n"):
        yield line.decode("utf-8", "replace").strip()


def _is_person(uid: int) -> bool:
    """Whether the owner of a file can be the user of a job, rather than the batch system."""
    return uid >= _FIRST_PERSON and uid not in _SYSTEM_UIDS


# The file with the number of virtual GPUs per GPU: read when it changes. While it is invalid, the old ratios apply.

_MAX_RATIO_BYTES = 64 * 1024


class AllocationRatioReader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._reading = AllocationRatioReading(None)

    def read(self) -> AllocationRatioReading:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                status = os.fstat(descriptor)
                stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
                if stamp == self._stamp:
                    return self._reading
                text = os.read(descriptor, _MAX_RATIO_BYTES).decode("utf-8", "replace")
            finally:
                os.close(descriptor)
        except OSError as error:
            self._stamp = None
            return self._invalid(f"{error.strerror}; create it with a number above 0, such as 2")
        self._stamp = stamp
        try:
            ratios = parse_allocation_ratios(text)
        except RatioError as error:
            return self._invalid(str(error))
        if self._reading.problem:
            log.info("%s: valid again", self._path)
        self._reading = AllocationRatioReading(ratios)
        return self._reading

    def _invalid(self, why: str) -> AllocationRatioReading:
        """Keeps the last valid ratios, and logs each problem once."""
        problem = f"{self._path}: {why}"
        if problem != self._reading.problem:
            meanwhile = "the last valid ratio" if self._reading.ratios else "the device plugin's ratio, or 1"
            log.warning("%s; until then %s applies", problem, meanwhile)
            self._reading = AllocationRatioReading(self._reading.ratios, problem)
        return self._reading


_LINE = re.compile(r"(?:([0-9]{1,4})\s*=)?\s*(\S+)")
_EXPECTED = "expected a number above 0, such as 2, or a line such as 0=2 for each GPU"
_MAX_QUOTED = 40


class RatioError(Exception):
    """One line: what is wrong, and what is expected."""


def parse_allocation_ratios(text: str) -> AllocationRatios:
    everywhere: float | None = None
    by_gpu_index: dict[int, float] = {}
    for line in filter(None, (line.partition("#")[0].strip() for line in lines_of(text))):
        match = _LINE.fullmatch(line)
        ratio = _number(match[2]) if match else None
        if match is None or ratio is None:
            raise RatioError(f"invalid ratio '{line[:_MAX_QUOTED]}': {_EXPECTED}")
        if match[1] is not None and int(match[1]) not in by_gpu_index:
            by_gpu_index[int(match[1])] = ratio
        elif match[1] is None and everywhere is None:
            everywhere = ratio
        else:
            raise RatioError(f"repeated ratio '{line[:_MAX_QUOTED]}': {_EXPECTED}")
    if everywhere is None and not by_gpu_index:
        raise RatioError(f"the file is empty: {_EXPECTED}")
    return AllocationRatios(everywhere, by_gpu_index)


def _number(text: str) -> float | None:
    try:
        # Python also accepts 1_0 and digits of other scripts.
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
