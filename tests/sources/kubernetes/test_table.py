"""The table of pods against a simulated API server: whatever breaks, it ends up equal to the server."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fakes.api_server import pod
from gpucommons.sources.kubernetes.pods import Expired, PodTable, pod_of
from gpucommons.sources.source import SourceError
from unhurried import unhurried

NAMES = st.sampled_from(["a", "b", "c"])


class WatchMachine(RuleBasedStateMachine):
    """The server has a log; the table has a position in it, which sometimes expires."""

    @initialize()
    def begin(self) -> None:
        self.version = 0
        self.pods: dict[str, Any] = {}
        self.log: list[tuple[int, Any]] = []
        self.truth: dict[int, dict[str, Any]] = {0: {}}
        self.table = PodTable("node-1", ("team",))
        self.table.replace([], "0")

    def _happen(self, kind: str, document: Any) -> None:
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        self.log.append((self.version, {"type": kind, "object": document}))
        self.truth[self.version] = dict(self.pods)

    @rule(name=NAMES, phase=st.sampled_from(["Pending", "Running"]), generation=st.integers(1, 2))
    def a_pod_changes(self, name: str, phase: str, generation: int) -> None:
        uid = f"{name}-{generation}"
        kind = "MODIFIED" if uid in self.pods else "ADDED"
        self.pods[uid] = phase
        self._happen(kind, pod(name, metadata__uid=uid, status__phase=phase))

    @rule(name=NAMES, generation=st.integers(1, 2))
    def a_pod_goes(self, name: str, generation: int) -> None:
        uid = f"{name}-{generation}"
        if self.pods.pop(uid, None):
            self._happen("DELETED", pod(name, metadata__uid=uid))

    @rule()
    def a_bookmark(self) -> None:
        self._happen("BOOKMARK", {"kind": "Pod", "metadata": {}})

    @rule(most=st.integers(1, 5))
    def the_watch_goes_on(self, most: int) -> None:
        position = int(self.table.resource_version or "0")
        for version, event in [entry for entry in self.log if entry[0] > position][:most]:
            self.table.apply(event)
            assert self.table.resource_version == str(version)

    @rule()
    def a_new_list(self) -> None:
        documents = [pod(uid[0], metadata__uid=uid, status__phase=phase) for uid, phase in self.pods.items()]
        self.table.replace(documents, str(self.version))

    @invariant()
    def shows_the_truth_as_of_where_it_stands(self) -> None:
        if not hasattr(self, "table"):
            return
        shown = {uid: p.phase for uid, p in self.table.reading().by_uid.items()}
        assert shown == self.truth[int(self.table.resource_version or "0")]


TestWatch = WatchMachine.TestCase
TestWatch.settings = settings(unhurried(80), stateful_step_count=30)


def test_errors_in_the_stream() -> None:
    table = PodTable("node-1", ())
    table.replace([pod("a")], "7")
    with pytest.raises(Expired):
        table.apply({"type": "ERROR", "object": {"kind": "Status", "code": 410}})
    with pytest.raises(SourceError, match="etcd is on fire") as caught:
        table.apply({"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd is on fire"}})
    assert caught.value.reason == "status"
    nonsense: list[object] = [{"type": "EXPLODED"}, {}, [], None, 7, {"type": ["ADDED"]}]
    for strange in nonsense:
        with pytest.raises(SourceError) as caught:
            table.apply(strange)
        assert caught.value.reason == "garbage"
    assert table.resource_version == "7"
    assert list(table.reading().by_uid) == ["uid-of-a"]


def test_a_published_reading_does_not_change_and_is_built_once() -> None:
    table = PodTable("node-1", ())
    table.replace([pod("a")], "1")
    held = table.reading()
    table.apply({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "5"}}})
    assert table.reading() is held
    table.apply({"type": "MODIFIED", "object": pod("a", status__conditions=[{"type": "Ready"}])})
    assert table.reading() is held
    table.apply({"type": "DELETED", "object": pod("a")})
    assert list(held.by_uid) == ["uid-of-a"]
    assert list(table.reading().by_uid) == []


ID = "cd" * 32
WHOLE = pod(
    "train",
    metadata__labels={"team": "vision", "other": "x"},
    metadata__annotations={"kubernetes.io/config.hash": "ab" * 16},
    status__containerStatuses=[{"name": "main", "containerID": f"cri-o://{ID}"}],
    status__initContainerStatuses=[{"name": "setup", "containerID": "docker://" + "ef" * 32}],
    status__ephemeralContainerStatuses=[{"name": "debug", "containerID": ""}, {"name": "x", "containerID": ID}],
)


def test_a_whole_pod() -> None:
    found = pod_of(WHOLE, ("team", "absent"))
    assert found is not None
    assert found.labels == {"team": "vision"}
    assert found.config_hash == "ab" * 16
    assert found.containers == {ID: "main", "ef" * 32: "setup"}


def test_an_invalid_hash_is_ignored() -> None:
    for hash in ("", "AB" * 16, "ab" * 15, "uid-of-train", "ab" * 16 + "\n"):
        document = pod("train", metadata__annotations={"kubernetes.io/config.hash": hash})
        found = pod_of(document, ())
        assert found is not None
        assert found.config_hash is None


@pytest.mark.parametrize("field", ["uid", "name", "namespace"])
def test_a_document_without_identity_is_not_a_pod(field: str) -> None:
    values: list[Any] = [None, "", 7, ["x"]]
    for value in values:
        assert pod_of(pod("train", **{f"metadata__{field}": value}), ()) is None


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PLACES = [
    ("spec",),
    ("status",),
    ("status", "phase"),
    ("status", "containerStatuses"),
    ("status", "containerStatuses", 0),
    ("status", "containerStatuses", 0, "containerID"),
    ("status", "containerStatuses", 0, "name"),
    ("metadata", "labels"),
    ("metadata", "labels", "team"),
    ("metadata", "annotations"),
]


@given(place=st.sampled_from(PLACES), damage=anything)
def test_any_damage_leaves_a_valid_pod(place: tuple[str | int, ...], damage: object) -> None:
    document: Any = copy.deepcopy(WHOLE)
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = damage
    found = pod_of(document, ("team",))
    assert found is not None
    assert found.uid == "uid-of-train"
    for text in (found.phase, *found.labels.values(), *found.containers.values()):
        text.encode("utf-8")


@given(document=anything)
def test_no_document_raises(document: object) -> None:
    assert pod_of(document, ("team",)) is None


def test_what_a_pod_needs_is_in_its_annotations_or_labels_and_its_priority_class() -> None:
    document = pod(
        "train",
        metadata__annotations={"gpucommons.io/core": "40", "gpucommons.io/memory": "4Gi", "other/key": "x"},
        metadata__labels={"gpucommons.io/core": "90", "gpucommons.io/class": "background", "idle": "x"},
        spec__priorityClassName="background",
    )
    found = pod_of(document, ())
    assert found is not None
    assert found.annotations == {
        "gpucommons.io/core": "40",
        "gpucommons.io/memory": "4Gi",
        "gpucommons.io/class": "background",
    }
    assert (found.labels, found.priority_class) == ({}, "background")
