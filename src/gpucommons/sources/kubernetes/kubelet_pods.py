"""This node's pods from the kubelet, for agents without access to the API server. One request every ten seconds.

Requires the right to get nodes/proxy, or the kubelet's read-only port.
"""

import asyncio

from gpucommons.base.backoff import Backoff
from gpucommons.model.workloads import PodReading
from gpucommons.sources.json_values import items, mapping, text
from gpucommons.sources.kubernetes.access import ClusterAccess
from gpucommons.sources.kubernetes.api import ApiServer
from gpucommons.sources.kubernetes.pod_json import LabelNames, pod_of
from gpucommons.sources.latest import Latest, keep_following
from gpucommons.sources.source import SourceError

_GRANT = "grant its service account get on nodes/proxy"
_REFRESH_S = 10.0
_TIMEOUT_S = 5.0


class KubeletPodFollower:
    """An alternative to PodFollower. `access` names the kubelet: https://NODE:10250, or its read-only port."""

    def __init__(
        self,
        access: ClusterAccess,
        *,
        allowed_labels: LabelNames = (),
        refresh_s: float = _REFRESH_S,
        timeout_s: float = _TIMEOUT_S,
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
        async with ApiServer(self._access, self._timeout_s, _GRANT) as api:
            while True:
                answer = mapping(await api.get("/pods", {}))
                if text(answer.get("kind")) != "PodList":
                    raise SourceError("garbage", f"the response of {self._access.url} is not a list of pods")
                found = (pod_of(document, self._allowed_labels) for document in items(answer.get("items")))
                self._latest.succeed(PodReading.of(pod for pod in found if pod is not None))
                self._backoff.reset()
                await asyncio.sleep(self._refresh_s)
