"""This node's pods: by one list and one watch on the API server, or from the kubelet where that is not allowed."""

import asyncio
import os
import random
import time
from collections.abc import Callable

from gpucommons.base.backoff import Backoff
from gpucommons.model.workloads import PodReading
from gpucommons.sources.kubernetes.api import ApiServer, ClusterAccess, in_cluster
from gpucommons.sources.kubernetes.pods import Expired, LabelNames, PodTable, pod_of
from gpucommons.sources.source import Latest, SourceError, items, keep_following, mapping, text

# This node's pods by one list and one watch on the API server, which is resumed where it ended.
#
# A background task keeps the table; `read` returns its reading. A watch that breaks is resumed silently; if that fails,
# the source is down until it succeeds. Requires the rights to list and watch pods, and no other.

_PODS = "/api/v1/pods"
_GRANT = "grant its service account list and watch on pods, cluster-wide"
_PAGE = 100
_MAX_PAGES = 100
_TIMEOUT_S = 10.0
# How long the server keeps a watch open. A hung server is detected after this time at the latest.
_WATCH_S = 120.0
# A watch that ends sooner than this without an event counts as a failure.
_SHORT_WATCH_S = 1.0


class PodFollower:
    """`run` must be running. Without `access`, the API server that Kubernetes announces to each pod is used."""

    def __init__(
        self,
        access: ClusterAccess | None = None,
        *,
        allowed_labels: LabelNames = (),
        timeout_s: float = _TIMEOUT_S,
        watch_s: float = _WATCH_S,
        backoff: Backoff | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._allowed_labels = allowed_labels
        self._timeout_s = timeout_s
        self._watch_s = watch_s
        self._backoff = backoff or Backoff()
        self._monotonic = monotonic
        self._table: PodTable | None = None
        self._list_from_cache = True
        self._watch_was_useful = False
        self._latest: Latest[PodTable] = Latest("listing this node's pods from the API server")

    def read(self) -> PodReading:
        return self._latest.read().reading()

    async def run(self) -> None:
        """Keep the table current until cancelled, across failures of the API server."""
        await keep_following(self._follow, self._failed, self._backoff)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, Expired):
            self._table, self._list_from_cache = None, False
        elif not self._watch_was_useful:
            # A watch that worked before it broke is resumed at its position: nothing is missing yet.
            self._latest.fail_by(error)

    async def _follow(self) -> None:
        """One connection, until it breaks: always ends with an exception."""
        self._watch_was_useful = False
        access = self._access or in_cluster(os.environ)
        api = ApiServer(access, self._timeout_s, _GRANT)
        if self._table is None:
            self._table = await self._list(api, access.node_name)
        while True:
            await self._watch(api, self._table, access.node_name)

    async def _list(self, api: ApiServer, node_name: str) -> PodTable:
        table = PodTable(node_name, self._allowed_labels)
        # The first list may be slightly old: it comes from the server's cache, where nodes are indexed. A list after an
        # expired watch must be current, or the next watch would expire as well.
        parameters = {"fieldSelector": f"spec.nodeName={node_name}", "limit": str(_PAGE)}
        if self._list_from_cache:
            parameters["resourceVersion"] = "0"
        documents: list[object] = []
        for _ in range(_MAX_PAGES):
            page = mapping(await api.get(_PODS, parameters))
            metadata = mapping(page.get("metadata"))
            if text(page.get("kind")) != "PodList" or not text(metadata.get("resourceVersion")):
                raise SourceError("garbage", "the response of the API server is not a list of pods")
            documents += items(page.get("items"))
            if not (more := text(metadata.get("continue"))):
                table.replace(documents, text(metadata.get("resourceVersion")))
                return table
            parameters.pop("resourceVersion", None)
            parameters["continue"] = more
        raise SourceError("oversize", f"the API server has more than {_MAX_PAGES * _PAGE} pods for this node")

    async def _watch(self, api: ApiServer, table: PodTable, node_name: str) -> None:
        """One watch, until the server ends it as requested."""
        # Random lengths keep the nodes of a cluster from reconnecting in the same second.
        length_s = self._watch_s * random.uniform(0.8, 1.0)
        parameters = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "fieldSelector": f"spec.nodeName={node_name}",
            "resourceVersion": table.resource_version or "0",
            "timeoutSeconds": str(max(1, int(length_s))),
        }
        self._watch_was_useful = False
        begun_s = self._monotonic()
        had_event = False
        async with api.stream(_PODS, parameters, silence_s=length_s + self._timeout_s) as events:
            self._latest.succeed(table)
            try:
                async for event in events:
                    table.apply(event)
                    had_event = True
                    self._backoff.reset()
            finally:
                self._watch_was_useful = had_event or self._monotonic() - begun_s >= _SHORT_WATCH_S
        if not self._watch_was_useful:
            raise SourceError("disconnected", "the API server ends each watch immediately")
        self._backoff.reset()


# This node's pods from the kubelet, for agents without access to the API server. One request every eight seconds.
#
# Requires the right to get nodes/proxy, or the kubelet's read-only port.

_KUBELET_GRANT = "grant its service account get on nodes/proxy"
# What a pod says of itself takes effect within 10 s: an answer and a snapshot come after it.
_REFRESH_S = 8.0
_KUBELET_TIMEOUT_S = 5.0


class KubeletPodFollower:
    """An alternative to PodFollower. `access` names the kubelet: https://NODE:10250, or its read-only port."""

    def __init__(
        self,
        access: ClusterAccess,
        *,
        allowed_labels: LabelNames = (),
        refresh_s: float = _REFRESH_S,
        timeout_s: float = _KUBELET_TIMEOUT_S,
        backoff: Backoff | None = None,
    ) -> None:
        self._access = access
        self._allowed_labels = allowed_labels
        self._refresh_s = refresh_s
        self._timeout_s = timeout_s
        self._backoff = backoff or Backoff()
        self._latest: Latest[PodReading] = Latest("listing the pods of the kubelet")

    def read(self) -> PodReading:
        return self._latest.read()

    async def run(self) -> None:
        """Keep the result current until cancelled, across restarts of the kubelet."""
        await keep_following(self._follow, self._latest.fail_by, self._backoff)

    async def _follow(self) -> None:
        api = ApiServer(self._access, self._timeout_s, _KUBELET_GRANT)
        while True:
            answer = mapping(await api.get("/pods", {}))
            if text(answer.get("kind")) != "PodList":
                raise SourceError("garbage", f"the response of {self._access.url} is not a list of pods")
            pods = (pod_of(document, self._allowed_labels) for document in items(answer.get("items")))
            self._latest.succeed(PodReading.of(pod for pod in pods if pod is not None))
            self._backoff.reset()
            await asyncio.sleep(self._refresh_s)
