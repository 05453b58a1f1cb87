"""The calls of the Docker Engine API that the agent needs, on a Unix socket, and the answers as values. Read-only."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gpucommons.base.http_client import Answer, HttpRequest, body_of, exchange, failures_of, lines_of
from gpucommons.model.workloads import Container, ContainerState, DeviceRequest
from gpucommons.sources.source import (
    JsonObject,
    SourceAbsent,
    SourceError,
    integer,
    items,
    mapping,
    parse,
    text,
    text_mapping,
    texts,
    wall_s,
)

# One container's inspect document as a Container. Pure; a damaged field costs that field only.
#
# Of the environment, only NVIDIA_VISIBLE_DEVICES is kept.

_FULL_ID = re.compile(r"[0-9a-f]{64}")
_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES="

# Editors store whole documents in labels: one that long does not name an owner.
_LONGEST_LABEL = 4096
_MAX_LABELS = 512

# Podman has states that Docker's vocabulary lacks.
_STATES = {
    "configured": ContainerState.CREATED,
    "initialized": ContainerState.CREATED,
    "stopped": ContainerState.EXITED,
    "stopping": ContainerState.RUNNING,
    **{state.value: state for state in ContainerState},
}


def is_full_id(id: str) -> bool:
    return _FULL_ID.fullmatch(id) is not None


def container_of(document: object, runtime: str) -> Container | None:
    """None if the document has no container id."""
    fields = mapping(document)
    id = text(fields.get("Id"))
    if not is_full_id(id):
        return None
    state = mapping(fields.get("State"))
    config = mapping(fields.get("Config"))
    host = mapping(fields.get("HostConfig"))
    pid = integer(state.get("Pid"))
    return Container(
        id=id,
        name=text(fields.get("Name")).removeprefix("/"),
        runtime=runtime,
        state=_STATES.get(text(state.get("Status")), ContainerState.UNKNOWN),
        image=text(config.get("Image")),
        labels=_labels(config.get("Labels")),
        init_pid=pid if pid > 0 else None,
        created_wall_s=wall_s(fields.get("Created")),
        started_wall_s=wall_s(state.get("StartedAt")),
        device_requests=tuple(_device_request(mapping(item)) for item in items(host.get("DeviceRequests"))),
        visible_devices=_visible_devices(texts(config.get("Env"))),
        devices=_device_paths(host.get("Devices")),
        privileged=host.get("Privileged") is True,
        cgroup_parent=text(host.get("CgroupParent")),
    )


def _labels(value: object) -> dict[str, str]:
    labels = {key: item for key, item in text_mapping(value).items() if len(key) + len(item) <= _LONGEST_LABEL}
    return dict(list(labels.items())[:_MAX_LABELS])


def _device_request(fields: JsonObject) -> DeviceRequest:
    return DeviceRequest(
        driver=text(fields.get("Driver")),
        count=integer(fields.get("Count")),
        device_ids=texts(fields.get("DeviceIDs")),
    )


def _visible_devices(environment: tuple[str, ...]) -> str | None:
    entries = [entry for entry in environment if entry.startswith(_VISIBLE_DEVICES)]
    return entries[-1].removeprefix(_VISIBLE_DEVICES) if entries else None


def _device_paths(value: object) -> tuple[str, ...]:
    paths = (text(mapping(item).get("PathOnHost")) for item in items(value))
    return tuple(path for path in paths if path)


# The calls of the Docker Engine API that the agent needs, on a Unix socket. Read-only.
#
# Every response is limited in size and, except for the event stream, in time.

_NEWEST_KNOWN = (1, 44)
_MAX_ANSWER_BYTES = 4 * 1024 * 1024
_MAX_LIST_BYTES = 16 * 1024 * 1024

# Docker's names and Podman's. Events of health checks are filtered out: they are by far the most frequent.
_ACTIONS_GONE = ("destroy", "remove")
_ACTIONS = (
    "create",
    "start",
    "restart",
    "stop",
    "die",
    "cleanup",
    "pause",
    "unpause",
    "rename",
    "update",
    *_ACTIONS_GONE,
)


class EngineKind(NamedTuple):
    """A program that serves the Docker Engine API, how to start it, and how to give the agent access."""

    name: str
    title: str
    default_socket: str
    how_to_start: str
    how_to_allow: str


DOCKER = EngineKind(
    "docker",
    "Docker",
    "/var/run/docker.sock",
    "start Docker (systemctl start docker)",
    "add the agent's user to the group docker, or run the agent as root",
)
PODMAN = EngineKind(
    "podman",
    "Podman",
    "/run/podman/podman.sock",
    "start Podman's service (systemctl enable --now podman.socket)",
    "run the agent as root, or give its user access to that socket and its directory",
)


class EngineEvent(NamedTuple):
    container_id: str
    is_gone: bool


class ContainerEngine:
    """The API of one daemon. Call `connect` first."""

    def __init__(self, kind: EngineKind, socket: str, timeout_s: float) -> None:
        self._kind = kind
        self._socket = socket
        self._whose = f"{kind.title} at {socket}"
        self._timeout_s = timeout_s
        self._prefix = ""
        self._runtime = kind.name

    async def connect(self) -> None:
        """Find out which program answers, and negotiate the version of the API."""
        about = mapping(await self._get("/version", _MAX_ANSWER_BYTES))
        version = agree_version(text(about.get("MinAPIVersion")), text(about.get("ApiVersion")))
        if version is None:
            raise SourceError("garbage", f"{self._whose} does not report its API version")
        self._prefix = f"/v{version}"
        components = (text(mapping(item).get("Name")) for item in items(about.get("Components")))
        self._runtime = PODMAN.name if any("Podman" in name for name in components) else DOCKER.name

    async def ping(self) -> None:
        with self._failures():
            async with exchange(self._request("/_ping")) as answer:
                await body_of(answer, _MAX_ANSWER_BYTES)
                self._check_status(answer, "/_ping")

    async def container_ids(self) -> list[str]:
        """All containers, including stopped ones. Entries without a full id are ignored."""
        listed = items(await self._get(f"{self._prefix}/containers/json?all=1", _MAX_LIST_BYTES))
        ids = (text(mapping(entry).get("Id")) for entry in listed)
        return [id for id in ids if is_full_id(id)]

    async def inspect(self, id: str) -> Container | None:
        """None if there is no such container."""
        path = f"{self._prefix}/containers/{id}/json"
        with self._failures():
            async with exchange(self._request(path)) as answer:
                if answer.status == 404:
                    return None
                self._check_status(answer, path)
                body = await body_of(answer, _MAX_ANSWER_BYTES)
        container = container_of(parse(body, self._whose), self._runtime)
        if container is None or container.id != id:
            raise SourceError("garbage", f"{self._whose} returned another container than the one requested")
        return container

    async def events(self, since_s: float) -> AsyncIterator[EngineEvent]:
        """Events of containers from `since_s` on, including the time of the list request. Ends with an exception.

        Docker responds before it subscribes, and Podman responds only at the first event: `since_s` closes the gap, so
        there is no need to wait for the start of the stream.
        """
        filters = json.dumps({"type": ["container"], "event": _ACTIONS})
        path = f"{self._prefix}/events"
        request = HttpRequest(
            f"http://localhost{path}",
            parameters={"since": f"{since_s:.9f}", "filters": filters},
            socket_path=self._socket,
            connect_s=self._timeout_s,
        )
        with self._failures():
            async with exchange(request) as answer:
                self._check_status(answer, path)
                async for line in lines_of(answer, _MAX_ANSWER_BYTES):
                    event = event_of(parse(line, self._whose))
                    if event is not None:
                        yield event
        raise SourceError("disconnected", f"{self._whose} ended its event stream")

    async def _get(self, path: str, max_bytes: int) -> object:
        with self._failures():
            async with exchange(self._request(path)) as answer:
                self._check_status(answer, path)
                return parse(await body_of(answer, max_bytes), self._whose)

    def _request(self, path: str) -> HttpRequest:
        return HttpRequest(f"http://localhost{path}", socket_path=self._socket, total_s=self._timeout_s)

    def _check_status(self, answer: Answer, path: str) -> None:
        if answer.status != 200:
            raise SourceError("status", f"{self._whose} answered {answer.status} to {path.partition('?')[0]}")

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            with failures_of(self._whose, SourceError):
                yield
        except FileNotFoundError:
            raise SourceAbsent(
                f"there is no {self._kind.title} socket at {self._socket}",
                f"{self._kind.how_to_start}, or set [path] {self._kind.name}_socket",
            ) from None
        except PermissionError:
            raise SourceError("denied", f"no permission to open {self._socket}: {self._kind.how_to_allow}") from None
        except ConnectionRefusedError:
            raise SourceError("refused", f"no program listens on {self._socket}: {self._kind.how_to_start}") from None
        except OSError as error:
            raise SourceError("disconnected", f"cannot reach {self._whose}: {error.strerror}") from None


def agree_version(oldest: str, newest: str) -> str | None:
    """The newest version of the API that both sides support; the daemon's oldest if that is newer than ours."""
    theirs = _version(newest)
    if theirs is None:
        return None
    agreed = max(min(theirs, _NEWEST_KNOWN), _version(oldest) or (0, 0))
    return f"{agreed[0]}.{agreed[1]}"


def _version(version: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", version, re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def event_of(document: object) -> EngineEvent | None:
    """The event in a line of the stream; None if it does not concern a container."""
    fields = mapping(document)
    if text(fields.get("Type")) != "container":
        return None
    id = text(mapping(fields.get("Actor")).get("ID")) or text(fields.get("id"))
    if not is_full_id(id):
        return None
    return EngineEvent(id, text(fields.get("Action")) in _ACTIONS_GONE)
