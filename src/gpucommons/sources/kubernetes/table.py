"""This node's pods, kept current by a list and the watch that continues from it. Pure.

`resource_version` is the position of the watch: each event advances it, so that a broken watch is resumed without
repeating or losing an event.
"""

from collections.abc import Iterable

from gpucommons.model.workloads import Pod, PodReading
from gpucommons.sources.json_values import integer, mapping, text
from gpucommons.sources.kubernetes.pod_json import LabelNames, node_of, pod_of
from gpucommons.sources.source import SourceError

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
