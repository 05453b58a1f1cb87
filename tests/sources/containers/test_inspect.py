"""Inspect documents, whole and damaged: an invalid field costs only that field."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.model.workloads import ContainerState, DeviceRequest
from gpucommons.sources.containers.engine import agree_version, container_of, event_of

ID = "ab" * 32
WHOLE: dict[str, Any] = {
    "Id": ID,
    "Name": "/train",
    "Created": "2026-11-15T01:58:13.051214921Z",
    "State": {
        "Status": "exited",
        "Pid": 0,
        "StartedAt": "2026-11-15T03:58:13.307831096+02:00",
        "FinishedAt": "0001-01-01T00:00:00Z",
    },
    "Config": {
        "Image": "pytorch:2",
        "Labels": {"ds01.user": "alice"},
        "Env": ["TOKEN=secret", "NVIDIA_VISIBLE_DEVICES=GPU-1", "X_NVIDIA_VISIBLE_DEVICES=no"],
    },
    "HostConfig": {
        "Privileged": True,
        "CgroupParent": "ds01-lab-alice.slice",
        "Devices": [{"PathOnHost": "/dev/nvidia0"}, {"PathOnHost": "/dev/nvidiactl"}],
        "DeviceRequests": [{"Driver": "cdi", "Count": 0, "DeviceIDs": ["nvidia.com/gpu=0"], "Capabilities": None}],
    },
}


def test_a_whole_document() -> None:
    container = container_of(WHOLE, "docker")
    assert container is not None
    assert container.id == ID
    assert container.name == "train"
    assert container.state is ContainerState.EXITED
    assert container.created_wall_s == pytest.approx(1794707893.051214, abs=1e-5)
    assert container.started_wall_s == pytest.approx(1794707893.307831, abs=1e-5)
    assert container.init_pid is None
    assert container.visible_devices == "GPU-1"
    assert container.devices == ("/dev/nvidia0", "/dev/nvidiactl")
    assert container.privileged
    assert container.cgroup_parent == "ds01-lab-alice.slice"
    assert container.device_requests == (DeviceRequest("cdi", 0, ("nvidia.com/gpu=0",)),)


def test_an_empty_variable_is_not_an_unset_one() -> None:
    document = copy.deepcopy(WHOLE)
    document["Config"]["Env"] = ["NVIDIA_VISIBLE_DEVICES="]
    container = container_of(document, "docker")
    assert container is not None
    assert container.visible_devices == ""
    document["Config"]["Env"] = None
    container = container_of(document, "docker")
    assert container is not None
    assert container.visible_devices is None


@pytest.mark.parametrize(
    ("word", "state"),
    [("configured", "created"), ("stopped", "exited"), ("stopping", "running"), ("on fire", "unknown")],
)
def test_states_of_podman(word: str, state: str) -> None:
    container = container_of({"Id": ID, "State": {"Status": word}}, "podman")
    assert container is not None
    assert container.state == state


@pytest.mark.parametrize("id", ["", "abc", ID[:-1], ID + "0", ID.upper(), f"{ID}\n", None, 7, [ID]])
def test_a_document_without_a_full_id_is_not_a_container(id: object) -> None:
    assert container_of({**WHOLE, "Id": id}, "docker") is None


def test_a_document_in_a_label_is_left_out() -> None:
    document = copy.deepcopy(WHOLE)
    document["Config"]["Labels"]["devcontainer.metadata"] = "x" * 100_000
    container = container_of(document, "docker")
    assert container is not None
    assert container.labels == {"ds01.user": "alice"}


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PATHS = [
    (key,) + ((inner,) if inner else ())
    for key, value in WHOLE.items()
    if key != "Id"
    for inner in [None, *(value if isinstance(value, dict) else ())]
]


@given(path=st.sampled_from(PATHS), damage=anything)
def test_any_damage_to_any_field_leaves_a_valid_container(path: tuple[str, ...], damage: object) -> None:
    document = copy.deepcopy(WHOLE)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = damage
    container = container_of(document, "docker")
    assert container is not None
    assert container.id == ID
    repr(container).encode()
    for text in (
        container.name,
        container.image,
        container.visible_devices or "",
        *container.labels.values(),
    ):
        text.encode("utf-8")
    assert container.init_pid is None or container.init_pid > 0


@given(document=anything)
def test_no_document_raises(document: object) -> None:
    assert container_of(document, "docker") is None
    assert event_of(document) is None


def test_events() -> None:
    event = {"Type": "container", "Action": "start", "Actor": {"ID": ID, "Attributes": {}}}
    assert event_of(event) == (ID, False)
    assert event_of({**event, "Action": "destroy"}) == (ID, True)
    assert event_of({**event, "Action": "remove"}) == (ID, True)
    assert event_of({**event, "Type": "network"}) is None
    assert event_of({"Type": "container", "Action": "die", "id": ID}) == (ID, False)
    assert event_of(json.loads('{"Type": "container", "Action": "die", "id": "../../secret"}')) is None


@pytest.mark.parametrize(
    ("oldest", "newest", "agreed"),
    [
        ("1.12", "1.41", "1.41"),
        ("1.24", "1.52", "1.44"),
        ("1.44", "1.52", "1.44"),
        ("1.50", "1.60", "1.50"),
        ("", "1.40", "1.40"),
        ("1.24", "", None),
        ("1.24", "1.4/../../x", None),
        ("1.24", "99999.1", None),
    ],
)
def test_api_versions_are_negotiated(oldest: str, newest: str, agreed: str | None) -> None:
    assert agree_version(oldest, newest) == agreed
