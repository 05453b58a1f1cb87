"""Parses /proc/PID/cgroup: text in, CgroupIdentity out. No text raises an exception. Opens no file.

With nested runtimes, the last container on the path is the container of the process.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

from gpucommons.model.process_identity import CgroupIdentity

MAX_TEXT = 64 * 1024
MAX_LINES = 64
MAX_SEGMENTS = 128

UNKNOWN = CgroupIdentity()
POD_HIDDEN = "the pod's part of the cgroup path is outside the agent's cgroup namespace"
CUT_SHORT = f"the cgroup file is longer than {MAX_TEXT // 1024} KiB: only its start was read"

_ID = r"[0-9a-f]{64}"
_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_RUNTIME_OF_PREFIX = {
    "docker": "docker",
    "cri-containerd": "containerd",
    "nerdctl": "containerd",
    "crio": "cri-o",
    "libpod": "podman",
}
_PREFIXES = "|".join(_RUNTIME_OF_PREFIX)

_PREFIXED_CONTAINER = re.compile(rf"({_PREFIXES})-({_ID})(?:\.scope)?")
# The systemd driver's "slice:prefix:name", unexpanded if the runtime uses cgroupfs.
_UNEXPANDED_CONTAINER = re.compile(rf"[^:]*:({_PREFIXES}):({_ID})")
_BARE_CONTAINER = re.compile(_ID)
_SLICE_POD = re.compile(rf"(?:.*-)?kubepods(?:-(burstable|besteffort))?-pod({_UID})\.slice(?::.*)?")
_PLAIN_POD = re.compile(rf"pod({_UID})")
_USER_MANAGER = re.compile(r"user@([0-9]{1,10})\.service")
_USER_SLICE = re.compile(r"user-([0-9]{1,10})\.slice")
_SLURM_V1_ROOT = re.compile(r"slurm(?:_.+)?")
_SLURM_V2_ROOT = re.compile(r"(?:.+_)?slurmstepd\.scope")
_SLURM_UID = re.compile(r"uid_([0-9]{1,10})")
_SLURM_JOB = re.compile(r"job_([0-9]{1,18})")
_SLURM_SLUID = re.compile(r"s[0-9A-Z]{13}")
_UNIT_SUFFIXES = (".service", ".scope")
# The managers themselves: what runs directly in them has nothing in common.
_MANAGER = re.compile(r"init\.scope|user@[0-9]+\.service")
_NOT_A_UNIT = re.compile(r"session-[^/]*\.scope|init\.scope|user@[0-9]+\.service|(?:[^/]+_)?slurmstepd\.scope")


class _Pod(NamedTuple):
    uid: str
    qos: str | None


def identify(text: str) -> CgroupIdentity:
    """The identity from all lines: on cgroup v1 each line contains a part of it."""
    paths = dict.fromkeys(_paths(text))
    identities = [_of_path(path) for path in paths]
    best = max(identities, key=_rank, default=UNKNOWN)
    job = best if best.job else next((f for f in identities if f.job and not f.delegated), None)
    if job:
        best = replace(best, job=job.job, uid=best.uid if best.delegated else job.uid)
    if best.uid is None:
        best = replace(best, uid=next((f.uid for f in identities if f.uid is not None), None))
    notes = [best.note] if best.note else []
    others = {f.container_id for f in identities if f.container_id} - {best.container_id, *best.enclosing}
    if others:
        notes.append("the lines of its cgroup file name different containers: the most nested is used")
    if len(text) > MAX_TEXT:
        notes.append(CUT_SHORT)
    return replace(best, note="; ".join(notes) or None, scope=_scope(paths, identities) if _is_plain(best) else None)


def _is_plain(identity: CgroupIdentity) -> bool:
    return identity.container_id is None and identity.job is None and identity.pod_uid is None


def _scope(paths: Iterable[str], identities: Iterable[CgroupIdentity]) -> str | None:
    """Of the longest path that has one: on cgroup v1 only some lines have the whole path."""
    scopes = [
        (path.count("/"), identity.scope) for path, identity in zip(paths, identities, strict=True) if identity.scope
    ]
    return max(scopes, key=itemgetter(0))[1] if scopes else None


def _rank(identity: CgroupIdentity) -> tuple[bool, bool, int, bool, bool, bool]:
    """Orders lines: the deepest container first, and what a user may have chosen last."""
    return (
        identity.container_id is not None and not identity.delegated,
        identity.container_id is not None,
        len(identity.enclosing),
        identity.pod_uid is not None,
        identity.job is not None,
        identity.unit is not None,
    )


def _paths(text: str) -> list[str]:
    lines = text[:MAX_TEXT].split("\n", MAX_LINES)[:MAX_LINES]
    fields = (line.split(":", 2) for line in lines)
    # The kernel appends this if the cgroup was removed before the process ended.
    return [parts[2].removesuffix(" (deleted)") for parts in fields if len(parts) == 3]


def _of_path(path: str) -> CgroupIdentity:
    segments = [s for s in path.split("/", MAX_SEGMENTS) if s][:MAX_SEGMENTS]
    containers = [c for i in range(len(segments)) if (c := _container(segments, i))]
    pod = next((p for i in reversed(range(len(segments))) if (p := _pod(segments, i))), None)
    job, job_uid = _slurm(segments)
    manager = next((m for s in segments if (m := _USER_MANAGER.fullmatch(s))), None)
    user = manager or next((m for s in segments if (m := _USER_SLICE.fullmatch(s))), None)
    runtime, container_id = containers[-1] if containers else (None, None)
    hidden = container_id is not None and pod is None and segments[0] == ".."
    return CgroupIdentity(
        runtime=runtime,
        container_id=container_id,
        pod_uid=pod.uid if pod else None,
        qos=pod.qos if pod else None,
        unit=None if containers or job or user else _unit(segments),
        job=job,
        uid=int(user[1]) if user else job_uid,
        note=POD_HIDDEN if hidden else None,
        enclosing=tuple(dict.fromkeys(c for _, c in reversed(containers[:-1]) if c != container_id)),
        delegated=manager is not None,
        scope=_innermost(segments, _MANAGER),
    )


def _container(segments: list[str], i: int) -> tuple[str, str] | None:
    """The runtime and id of a container, where this segment names one."""
    segment = segments[i]
    match = _PREFIXED_CONTAINER.fullmatch(segment) or _UNEXPANDED_CONTAINER.fullmatch(segment)
    if match:
        return _RUNTIME_OF_PREFIX[match[1]], match[2]
    if not _BARE_CONTAINER.fullmatch(segment):
        return None
    if i and segments[i - 1] == "docker":
        return "docker", segment
    if i and _pod(segments, i - 1):
        return "kubelet", segment
    return "unknown", segment


def _pod(segments: list[str], i: int) -> _Pod | None:
    """The pod that this segment names, and its quality of service class from the path."""
    if match := _SLICE_POD.fullmatch(segments[i]):
        return _Pod(_add_dashes(match[2]), match[1] or "guaranteed")
    if match := _PLAIN_POD.fullmatch(segments[i]):
        parent = segments[i - 1] if i else ""
        classes = {"burstable": "burstable", "besteffort": "besteffort", "kubepods": "guaranteed"}
        return _Pod(_add_dashes(match[1]), classes.get(parent))
    return None


def _add_dashes(uid: str) -> str:
    return uid.replace("_", "-")


def _slurm(segments: list[str]) -> tuple[str | None, int | None]:
    """The job, and on cgroup v1 the uid, below Slurm's directory."""
    for i, segment in enumerate(segments[:-1]):
        below = segments[i + 1 : i + 3]
        if _SLURM_V2_ROOT.fullmatch(segment):
            job = _SLURM_JOB.fullmatch(below[0])
            return (job[1], None) if job else (_sluid(below[0]), None)
        if _SLURM_V1_ROOT.fullmatch(segment) and (uid := _SLURM_UID.fullmatch(below[0])):
            job = _SLURM_JOB.fullmatch(below[-1])
            return (job[1] if job else None), int(uid[1])
    return None, None


def _sluid(segment: str) -> str | None:
    return segment if _SLURM_SLUID.fullmatch(segment) else None


def _unit(segments: list[str]) -> str | None:
    """The innermost unit of the system manager that identifies a service."""
    return _innermost(segments, _NOT_A_UNIT)


def _innermost(segments: list[str], excluded: re.Pattern[str]) -> str | None:
    units = (s for s in reversed(segments) if s.endswith(_UNIT_SUFFIXES))
    return next((s for s in units if not excluded.fullmatch(s)), None)
