"""Metrics of other programs: the files *.prom of a directory, in the text format of Prometheus.

A file that cannot be read or is not valid costs its own metrics and is reported; the others are served. As in
node_exporter, a sample with a time stamp makes its file invalid: a stale value would look fresh.

Other users may be allowed to write into the directory, and the agent may be root: a link is followed only if root or
the agent's user has made it, and what each of the others may have read is limited.
"""

import errno
import glob
import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gpucommons.model.host import Labels, TextFamily, TextFilesReading, TextSample

_MAX_FILES = 1024
_MAX_FILE_BYTES = 4 << 20
# Each series of a family has all labels of the family: their number is the square of what a file says.
_MAX_LABELS = 64
_MAX_LINKS = 8
_MAX_LOGGED = 20
_RESERVED_LABEL = "__name__"
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


class _TooManySeries(TextFileError):
    """A file has more series than are allowed for its owner."""


class _Amount(NamedTuple):
    files: int = 0
    bytes: int = 0
    series: int = 0

    def plus(self, other: "_Amount") -> "_Amount":
        return _Amount(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def is_within(self, limit: "_Amount") -> bool:
        return all(mine <= most for mine, most in zip(self, limit, strict=True))


# Of one user's files, and of all users' together; root's and those of the agent's user are not limited. Series cost the
# most: 10,000 take about half a second to parse, and some megabytes.
_MAX_OF_OWNER: Final = _Amount(128, 1 << 20, 5_000)
_MAX_OF_OTHERS: Final = _Amount(512, 4 << 20, 10_000)


class _Parser:
    """The families of one file. Lines of one family need not be adjacent."""

    def __init__(self, max_series: int | None) -> None:
        self._max_series = max_series
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
            if len({label for sample in samples for label, _ in sample.labels}) > _MAX_LABELS:
                raise TextFileError(f"{name[:80]} has more than {_MAX_LABELS} labels")
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
        if self._max_series is not None and len(self._seen) >= self._max_series:
            raise _TooManySeries(f"more than {self._max_series} series")
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


def parse_text(text: str, max_series: int | None = None) -> tuple[TextFamily, ...]:
    """Raises TextFileError. The last line must be complete: a file may be read while it is written."""
    *lines, last = text.split("\n")
    parser = _Parser(max_series)
    for number, line in enumerate(lines, 1):
        try:
            parser.add(line)
        except _TooManySeries:
            raise
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
        if match[1] == _RESERVED_LABEL:
            # Prometheus would refuse everything that is served together with it.
            raise TextFileError(f"label {_RESERVED_LABEL} is reserved")
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
    """A file as it was when it was last parsed. `is_refused`: its owner's files have too much, and it is not kept."""

    version: tuple[int, int, int]
    amount: _Amount
    modified_s: int
    families: tuple[TextFamily, ...]
    problem: str
    is_refused: bool = False


class _Allowance:
    """What the files of others may still have."""

    def __init__(self) -> None:
        self._of_owner: dict[int, _Amount] = {}
        self._of_others = _Amount()

    def has_room(self, owner: int, amount: _Amount) -> bool:
        of_owner, of_others = self._of_owner.get(owner, _Amount()).plus(amount), self._of_others.plus(amount)
        return _is_trusted(owner) or (of_owner.is_within(_MAX_OF_OWNER) and of_others.is_within(_MAX_OF_OTHERS))

    def take(self, owner: int, amount: _Amount) -> None:
        if not _is_trusted(owner):
            self._of_owner[owner] = self._of_owner.get(owner, _Amount()).plus(amount)
            self._of_others = self._of_others.plus(amount)

    def series(self, owner: int) -> int | None:
        """How many more; None: any number."""
        if _is_trusted(owner):
            return None
        of_owner = self._of_owner.get(owner, _Amount())
        return min(_MAX_OF_OWNER.series - of_owner.series, _MAX_OF_OTHERS.series - self._of_others.series)


def _is_trusted(uid: int) -> bool:
    return uid in (0, os.geteuid())


class TextFileReader:
    """`directory` may be a pattern that fits several directories; empty: none. A file is parsed when it has changed."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._files: dict[str, _File] = {}
        self._unreadable: dict[str, str] = {}
        self._reading = TextFilesReading()

    def read(self) -> TextFilesReading:
        problems: dict[str, str] = {}
        files: dict[str, _File] = {}
        allowance = _Allowance()
        for path in self._paths(problems):
            try:
                files[path] = _read_file(path, self._files.get(path), allowance)
            except FileNotFoundError:
                # Removed after the directory was listed.
                continue
            except OSError as error:
                problems[path] = error.strerror or "cannot be read"
        unchanged = files.keys() == self._files.keys() and all(files[path] is self._files[path] for path in files)
        if unchanged and problems == self._unreadable:
            return self._reading
        self._files, self._unreadable = files, dict(problems)
        problems |= {path: file.problem for path, file in files.items() if file.problem}
        valid = {path: file for path, file in files.items() if not file.problem}
        families = _merge(((path, file.families) for path, file in valid.items()), problems)
        reading = TextFilesReading(families, {path: file.modified_s for path, file in valid.items()}, problems)
        news = [(path, problem) for path, problem in problems.items() if self._reading.problems.get(path) != problem]
        for path, problem in news[:_MAX_LOGGED]:
            log.warning("text files: %s: %s", path, problem)
        if len(news) > _MAX_LOGGED:
            log.warning("text files: %d more have problems", len(news) - _MAX_LOGGED)
        self._reading = reading
        return reading

    def _paths(self, problems: dict[str, str]) -> list[str]:
        owned: list[tuple[int, str]] = []
        for directory in sorted(glob.glob(self._directory)) or [self._directory] if self._directory else []:
            try:
                with os.scandir(directory) as entries:
                    found = [(_find_owner(entry), entry.path) for entry in entries if entry.name.endswith(".prom")]
            except OSError as error:
                problems[directory] = error.strerror or "cannot be read"
                continue
            owned += found
        if len(owned) > _MAX_FILES:
            problems[self._directory] = f"{len(owned)} files; the first {_MAX_FILES} are read"
        # Those of others come last: they take neither the place nor the name of a family from root's.
        ordered = sorted(owned, key=lambda row: (not _is_trusted(row[0]), row[1]))
        return [path for _, path in ordered[:_MAX_FILES]]


def _find_owner(entry: os.DirEntry[str]) -> int:
    """-1 for a file that was removed after the directory was listed."""
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except OSError:
        return -1


def _read_file(path: str, previous: _File | None, allowance: _Allowance) -> _File:
    """As it was before where it has not changed. A file that is not allowed is not parsed again until it could be."""
    descriptor = _open(path)
    try:
        status = os.fstat(descriptor)
        owner, version = status.st_uid, (status.st_ino, status.st_mtime_ns, status.st_size)
        before = previous if previous is not None and previous.version == version else None
        is_readable = stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_FILE_BYTES
        amount = _Amount(1, status.st_size if is_readable else 0) if before is None else before.amount
        modified_s = status.st_mtime_ns // 10**9
        if not allowance.has_room(owner, amount):
            refused = _File(version, amount, modified_s, (), _describe_excess(owner), True)
            return before if before is not None and before == refused else refused
        if before is not None and not before.is_refused:
            allowance.take(owner, amount)
            return before
        families: tuple[TextFamily, ...] = ()
        problem = "" if is_readable else f"larger than {_MAX_FILE_BYTES} bytes"
        if not stat.S_ISREG(status.st_mode):
            problem = "is not a regular file"
        elif is_readable:
            most = allowance.series(owner)
            try:
                families = parse_text(_read_content(descriptor).decode("utf-8"), most)
            except _TooManySeries:
                amount = amount._replace(series=(most or 0) + 1)
                return _File(version, amount, modified_s, (), _describe_excess(owner), True)
            except ValueError as error:
                problem = str(error)
        amount = amount._replace(series=sum(len(family.samples) for family in families))
        allowance.take(owner, amount)
        return _File(version, amount, modified_s, families, problem)
    finally:
        os.close(descriptor)


def _describe_excess(owner: int) -> str:
    files, size, series = _MAX_OF_OWNER
    return f"too much of uid {owner}, or of all such users: one has {files} files, {size} bytes and {series} series"


def _read_content(descriptor: int) -> bytes:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return file.read(_MAX_FILE_BYTES)


def _open(path: str) -> int:
    """Does not wait on a pipe. A link of root may lead to one of another user: each is looked at."""
    for _ in range(_MAX_LINKS):
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        # The link itself: another one may be in its place a moment later.
        link = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not _is_trusted(os.fstat(link).st_uid):
                raise OSError(errno.EACCES, "a link that another user has made is not followed")
            path = os.path.join(os.path.dirname(path), os.readlink("", dir_fd=link))
        finally:
            os.close(link)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


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
