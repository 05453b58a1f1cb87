"""This node's pods, kept current by a list and the watch that continues from it. Pure.

A damaged field of a pod's document costs that field only.
"""

import re
from collections.abc import Collection, Iterable
from itertools import islice

from gpucommons.model.workloads import KEPT_ANNOTATIONS, OWN_ANNOTATIONS, Pod, PodReading
from gpucommons.sources.source import JsonObject, SourceError, integer, items, mapping, text, text_mapping

# One pod's document as a Pod. Pure; a damaged field costs that field only.
#
# Keeps only labels on the allow-list and the annotations that the agent reads.

_CONFIG_HASH_ANNOTATION = "kubernetes.io/config.hash"
_CONFIG_HASH = re.compile(r"[0-9a-f]{32}")
_CONTAINER_ID = re.compile(r"[a-z0-9-]+://([0-9a-f]{64})")
_MAX_LABELS = 64
_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


class LabelPatterns:
    """The labels that are kept: by name, and by regular expression."""

    def __init__(self, names: Collection[str], patterns: Collection[str]) -> None:
        self._names = frozenset(names)
        self._patterns = tuple(re.compile(pattern) for pattern in patterns)

    def __contains__(self, name: str) -> bool:
        return name in self._names or any(pattern.search(name) for pattern in self._patterns)


LabelNames = Collection[str] | LabelPatterns


def pod_of(document: object, allowed_labels: LabelNames) -> Pod | None:
    """None if the document does not identify a pod."""
    fields = mapping(document)
    metadata = mapping(fields.get("metadata"))
    uid, name, namespace = (text(metadata.get(key)) for key in ("uid", "name", "namespace"))
    if not (uid and name and namespace):
        return None
    labels = text_mapping(metadata.get("labels"))
    annotations = text_mapping(metadata.get("annotations"))
    config_hash = annotations.get(_CONFIG_HASH_ANNOTATION, "")
    status = mapping(fields.get("status"))
    return Pod(
        uid=uid,
        name=name,
        namespace=namespace,
        phase=text(status.get("phase")),
        labels=dict(islice(((key, labels[key]) for key in labels if key in allowed_labels), _MAX_LABELS)),
        annotations=_kept(annotations, labels),
        containers=_containers(status),
        config_hash=config_hash if _CONFIG_HASH.fullmatch(config_hash) else None,
        priority_class=text(mapping(fields.get("spec")).get("priorityClassName")),
    )


def _kept(annotations: dict[str, str], labels: dict[str, str]) -> dict[str, str]:
    given = {key: labels[key] for key in OWN_ANNOTATIONS if key in labels} | annotations
    return {key: given[key] for key in KEPT_ANNOTATIONS if key in given}


def node_of(document: object) -> str:
    return text(mapping(mapping(document).get("spec")).get("nodeName"))


def _containers(status: JsonObject) -> dict[str, str]:
    """The names of the containers that were started, by full id without the runtime's prefix."""
    names: dict[str, str] = {}
    for kind in _STATUSES:
        for entry in map(mapping, items(status.get(kind))):
            if id := _CONTAINER_ID.fullmatch(text(entry.get("containerID"))):
                names[id[1]] = text(entry.get("name"))
    return names


# This node's pods, kept current by a list and the watch that continues from it. Pure.
#
# `resource_version` is the position of the watch: each event advances it, so that a broken watch is resumed without
# repeating or losing an event.

_GONE = 410


class Expired(SourceError):
    """The API server no longer has the position of the watch: a new list is necessary."""

    def __init__(self) -> None:
        super().__init__("expired", "the API server no longer has the position of the watch")


class PodTable:
    def __init__(self, node_name: str, allowed_labels: LabelNames) -> None:
        self.resource_version: str | None = None
        self._node_name = node_name
        self._allowed_labels = allowed_labels
        self._pods: dict[str, Pod] = {}
        self._reading: PodReading | None = None

    def replace(self, documents: Iterable[object], resource_version: str) -> None:
        """Take over a list: all pods as of `resource_version`."""
        self._pods.clear()
        self.resource_version = resource_version
        for document in documents:
            self._put(document)
        self._reading = None

    def apply(self, event: object) -> None:
        """Apply one event of the watch. Raises Expired, or a SourceError for an error event."""
        fields = mapping(event)
        kind, document = text(fields.get("type")), fields.get("object")
        if kind == "ERROR":
            status = mapping(document)
            if integer(status.get("code")) == _GONE:
                raise Expired
            raise SourceError("status", f"the API server ended the watch: {text(status.get('message'))[:200]}")
        if kind in ("ADDED", "MODIFIED"):
            self._put(document)
        elif kind == "DELETED":
            self._pods.pop(_uid(document), None)
            self._reading = None
        elif kind != "BOOKMARK":
            raise SourceError("garbage", "the API server sent an event of unknown type")
        if version := text(mapping(mapping(document).get("metadata")).get("resourceVersion")):
            self.resource_version = version

    def reading(self) -> PodReading:
        if self._reading is None:
            self._reading = PodReading.of(self._pods.values())
        return self._reading

    def _put(self, document: object) -> None:
        pod = pod_of(document, self._allowed_labels)
        # A proxy that ignores the selector would return the pods of the whole cluster.
        if pod is None or node_of(document) != self._node_name:
            return
        # Most changes of a pod do not concern us: then the reading stays the same object.
        if self._pods.get(pod.uid) != pod:
            self._pods[pod.uid] = pod
            self._reading = None


def _uid(document: object) -> str:
    return text(mapping(mapping(document).get("metadata")).get("uid"))
