"""The kubelet's list of pods, as an alternative to the API server."""

import asyncio
from pathlib import Path

from fakes.api_server import ApiServer, body, pod, status
from fakes.authority import Authority
from gpucommons.base.backoff import Backoff
from gpucommons.model.workloads import PodReading
from gpucommons.sources.kubernetes.api import ClusterAccess
from gpucommons.sources.kubernetes.source import KubeletPodFollower
from testbeds.following import eventually, eventually_fails, following


def source_of(access: ClusterAccess) -> KubeletPodFollower:
    return KubeletPodFollower(
        access, allowed_labels=("team",), refresh_s=0.02, timeout_s=0.5, backoff=Backoff(0.1, 0.1)
    )


async def eventually_has(source: KubeletPodFollower, *expected: str) -> PodReading:
    def look() -> PodReading | None:
        reading = source.read()
        return reading if sorted(p.name for p in reading.by_uid.values()) == sorted(expected) else None

    return await eventually(look)


def test_pods_of_the_kubelet_over_tls(tmp_path: Path) -> None:
    async def scenario() -> None:
        authority = Authority(tmp_path)
        token = tmp_path / "token"
        token.write_text("abc")
        kubelet = ApiServer(pod("train", metadata__labels={"team": "vision", "x": "y"}))
        kubelet.token = "abc"
        async with kubelet.serving(authority.server_tls("127.0.0.1")):
            source = source_of(ClusterAccess(kubelet.url, "node-1", str(authority.path), str(token)))
            async with following(source):
                reading = await eventually_has(source, "train")
                assert reading.by_uid["uid-of-train"].labels == {"team": "vision"}
                await kubelet.change("ADDED", pod("infer"))
                await eventually_has(source, "train", "infer")
                await kubelet.change("DELETED", pod("train"))
                await eventually_has(source, "infer")
                kubelet.list_faults = [status(403)]
                failure = await eventually_fails(source, "denied")
                assert str(failure).endswith("grant its service account get on nodes/proxy")
                for fault, reason in (
                    (body(b'{"kind": "Status"}'), "garbage"),
                    (body(b'{"kind', promised=900), "garbage"),
                    (status(500), "status"),
                    (status(410), "expired"),
                ):
                    await eventually_has(source, "infer")
                    kubelet.list_faults = [fault]
                    await eventually_fails(source, reason)
                await eventually_has(source, "infer")

    asyncio.run(scenario())


def test_the_read_only_port_needs_neither_token_nor_authority() -> None:
    async def scenario() -> None:
        kubelet = ApiServer(pod("train"))
        async with kubelet.serving(None):
            source = source_of(ClusterAccess(kubelet.url, "node-1"))
            async with following(source):
                await eventually_has(source, "train")

    asyncio.run(scenario())
