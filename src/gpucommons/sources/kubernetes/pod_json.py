"""One pod's document as a Pod. Pure; a damaged field costs that field only.

Keeps only labels on the allow-list and the annotations that the agent reads.
"""

import re
from collections.abc import Collection
from itertools import islice

from gpucommons.model.workloads import KEPT_ANNOTATIONS, Pod
from gpucommons.sources.json_values import JsonObject, items, mapping, text, text_mapping

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
        annotations={key: annotations[key] for key in KEPT_ANNOTATIONS if key in annotations},
        containers=_containers(status),
        config_hash=config_hash if _CONFIG_HASH.fullmatch(config_hash) else None,
    )


def node_of(document: object) -> str:
    return text(mapping(mapping(document).get("spec")).get("nodeName"))


def _containers(status: JsonObject) -> dict[str, str]:
    """The names of the containers that were started, by full id without the runtime's prefix."""
    found: dict[str, str] = {}
    for kind in _STATUSES:
        for entry in map(mapping, items(status.get(kind))):
            if id := _CONTAINER_ID.fullmatch(text(entry.get("containerID"))):
                found[id[1]] = text(entry.get("name"))
    return found
