"""Metrics of other programs: the files *.prom of a directory, in the text format of Prometheus.

A file that cannot be read or is not valid costs its own metrics and is reported; the others are served. As in
node_exporter, a sample with a time stamp makes its file invalid: a stale value would look fresh.

Other users may be allowed to write into the directory, and the agent may be root: a link is followed only if root or
the agent's user has made it.
"""

import errno
import glob
import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpucommons.model.host import Labels, TextFamily, TextFilesReading, TextSample

_MAX_FILES = 1024
_MAX_FILE_BYTES = 4 << 20
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*')
_VALUE = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf|infinity)|nan", re.ASCII | re.IGNORECASE)
_ESCAPE = re.compile(r"\\(.)")
_TYPES = frozenset(("counter", "gauge", "histogram", "summary", "untyped"))
# The samples of a family may have these suffixes, and for a summary also none.
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count", "")}

log = logging.getLogger(__name__)


class TextFileError(ValueError):
    """What is wrong with a file, with the number of its line."""


class _Parser:
    """The families of one file. Lines of one family need not be adjacent."""

    def __init__(self) -> None:
        self._types: dict[str, str] = {}
        self._helps: dict[str, str] = {}
        self._samples: dict[str, list[TextSample]] = {}
        self._seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()

    def add(self, line: str) -> None:
        line = line.strip(" \t")
        if line.startswith("#"):
            self._comment(line[1:].strip(" \t"))
        elif line:
            self._sample(line)

    def families(self) -> Iterator[TextFamily]:
        """In a family, each series has all labels that any of them has, as in node_exporter."""
        for name, samples in self._samples.items():
            yield TextFamily(name, self._types.get(name, "untyped"), self._helps.get(name, ""), _complete(samples))

    def _comment(self, text: str) -> None:
        keyword, _, rest = text.partition(" ")
        if keyword not in ("HELP", "TYPE"):
            return
        name, _, value = rest.lstrip(" \t").partition(" ")
        if _NAME.fullmatch(name) is None:
            raise TextFileError(f"{keyword} of an invalid name {name!r}")
        seen = self._helps if keyword == "HELP" else self._types
        if name in seen:
            raise TextFileError(f"a second {keyword} of {name}")
        if keyword == "HELP":
            self._helps[name] = _unescape(value)
        elif name in self._samples:
            raise TextFileError(f"TYPE of {name} after its samples")
        elif (kind := value.strip(" \t").lower()) in _TYPES:
            self._types[name] = kind
        else:
            raise TextFileError(f"unknown type {value.strip()!r} of {name}; use one of {', '.join(sorted(_TYPES))}")

    def _sample(self, line: str) -> None:
        match = _NAME.match(line)
        if match is None:
            raise TextFileError(f"no metric name in {line[:40]!r}")
        name, rest = match[0], line[match.end() :].lstrip(" \t")
        labels: Labels = ()
        if rest.startswith("{"):
            labels, rest = _labels(rest)
        value, *more = rest.split()[:2] or [""]
        if _VALUE.fullmatch(value) is None:
            raise TextFileError(f"value {value[:40]!r} of {name[:80]} is not a number")
        if more:
            raise TextFileError(f"{name} has a time stamp; remove it")
        key = (name, frozenset(labels))
        if key in self._seen:
            raise TextFileError(f"{name} repeats a series")
        self._seen.add(key)
        self._samples.setdefault(self._family_of(name), []).append(TextSample(name, labels, float(value)))

    def _family_of(self, name: str) -> str:
        for suffix in ("_bucket", "_sum", "_count"):
            family = name.removesuffix(suffix)
            if family != name and suffix in _SUFFIXES.get(self._types.get(family, ""), ()):
                return family
        if self._types.get(name) == "histogram":
            raise TextFileError(f"{name} is a histogram; expected {name}_bucket, {name}_sum or {name}_count")
        return name


def parse_text(text: str) -> tuple[TextFamily, ...]:
    """Raises TextFileError. The last line must be complete: a file may be read while it is written."""
    *lines, last = text.split("\n")
    parser = _Parser()
    for number, line in enumerate(lines, 1):
        try:
            parser.add(line)
        except TextFileError as error:
            raise TextFileError(f"line {number}: {error}") from None
    if last:
        raise TextFileError(f"line {len(lines) + 1}: does not end; write the file under another name and rename it")
    return tuple(parser.families())


def _labels(text: str) -> tuple[Labels, str]:
    """The labels of `{a="b",c="d"} rest`, and the rest. A comma before the brace is allowed."""
    at, labels = 1, {}
    while (match := _LABEL.match(text, at)) is not None:
        if match[1] in labels:
            raise TextFileError(f"label {match[1]} twice")
        labels[match[1]] = _unescape(match[2])
        at = match.end()
        if text[at : at + 1] != ",":
            break
        at += 1
    closing = text[at:].lstrip(" \t")
    if not closing.startswith("}"):
        raise TextFileError(f"invalid labels {text[:40]!r}")
    return tuple(labels.items()), closing[1:]


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: {"n": "\n"}.get(match[1], match[1]), text)


def _complete(samples: list[TextSample]) -> tuple[TextSample, ...]:
    own = ("le", "quantile")
    names = dict.fromkeys(name for sample in samples for name, _ in sample.labels if name not in own)
    return tuple(
        TextSample(
            sample.name,
            (*sample.labels, *((name, "") for name in names if name not in dict(sample.labels))),
            sample.value,
        )
        for sample in samples
    )


class _File(NamedTuple):
    """A file as it was when it was last parsed."""

    version: tuple[int, int, int]
    modified_s: int
    families: tuple[TextFamily, ...]
    problem: str


class TextFileReader:
    """`directory` may be a pattern that fits several directories; empty: none. A file is parsed when it has changed."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._files: dict[str, _File] = {}
        self._reading = TextFilesReading()

    def read(self) -> TextFilesReading:
        problems: dict[str, str] = {}
        files: dict[str, _File] = {}
        for path in self._paths(problems):
            try:
                files[path] = _read_file(path, self._files.get(path))
            except FileNotFoundError:
                # Removed after the directory was listed.
                continue
            except OSError as error:
                problems[path] = error.strerror or "cannot be read"
        self._files = files
        problems |= {path: file.problem for path, file in files.items() if file.problem}
        valid = {path: file for path, file in files.items() if not file.problem}
        families = _merge(((path, file.families) for path, file in valid.items()), problems)
        reading = TextFilesReading(families, {path: file.modified_s for path, file in valid.items()}, problems)
        for path, problem in problems.items():
            if self._reading.problems.get(path) != problem:
                log.warning("text files: %s: %s", path, problem)
        self._reading = reading
        return reading

    def _paths(self, problems: dict[str, str]) -> list[str]:
        paths: list[str] = []
        for directory in sorted(glob.glob(self._directory)) or [self._directory] if self._directory else []:
            try:
                names = sorted(name for name in os.listdir(directory) if name.endswith(".prom"))
            except OSError as error:
                problems[directory] = error.strerror or "cannot be read"
                continue
            paths += [os.path.join(directory, name) for name in names]
        if len(paths) > _MAX_FILES:
            problems[self._directory] = f"{len(paths)} files; the first {_MAX_FILES} are read"
        return paths[:_MAX_FILES]


def _read_file(path: str, previous: _File | None) -> _File:
    descriptor = _open(path)
    try:
        status = os.fstat(descriptor)
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        if previous is not None and previous.version == version:
            return previous
        families: tuple[TextFamily, ...] = ()
        if not stat.S_ISREG(status.st_mode):
            problem = "is not a regular file"
        elif status.st_size > _MAX_FILE_BYTES:
            problem = f"larger than {_MAX_FILE_BYTES} bytes"
        else:
            with os.fdopen(os.dup(descriptor), "rb") as file:
                data = file.read(_MAX_FILE_BYTES)
            try:
                families, problem = parse_text(data.decode("utf-8")), ""
            except ValueError as error:
                problem = str(error)
    finally:
        os.close(descriptor)
    return _File(version, status.st_mtime_ns // 10**9, families, problem)


def _open(path: str) -> int:
    """Does not wait on a pipe."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    # The link itself: another one may be in its place a moment later.
    link = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(link).st_uid not in (0, os.geteuid()):
            raise OSError(errno.EACCES, "a link that another user has made is not followed")
        target = os.readlink("", dir_fd=link)
    finally:
        os.close(link)
    return os.open(os.path.join(os.path.dirname(path), target), flags)


def _merge(files: Iterable[tuple[str, tuple[TextFamily, ...]]], problems: dict[str, str]) -> tuple[TextFamily, ...]:
    """One family per name. A file that contradicts the type of an earlier one, or repeats its series, loses that
    family."""
    merged: dict[str, TextFamily] = {}
    series: dict[str, set[tuple[str, frozenset[tuple[str, str]]]]] = {}
    for path, families in files:
        for family in families:
            earlier = merged.get(family.name)
            keys = {(sample.name, frozenset(pair for pair in sample.labels if pair[1])) for sample in family.samples}
            if earlier is not None and earlier.type != family.type:
                problems[path] = f"{family.name} is a {family.type} here, but a {earlier.type} in another file"
            elif not keys.isdisjoint(series.get(family.name, ())):
                problems[path] = f"{family.name} repeats a series of another file"
            else:
                before = () if earlier is None else earlier.samples
                help = family.help if earlier is None else earlier.help or family.help
                merged[family.name] = TextFamily(family.name, family.type, help, (*before, *family.samples))
                series.setdefault(family.name, set()).update(keys)
    return tuple(merged.values())
