"""Pods by list and watch from an API server over real TLS, with all kinds of failures."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from fakes.api_server import ApiServer, body, pod, silence, status, trickle
from fakes.authority import Authority
from gpucommons.agent.sources import pod_follower
from gpucommons.base.backoff import Backoff
from gpucommons.config.settings import DcgmSettings, KubernetesSettings
from gpucommons.model.workloads import QUOTA_ANNOTATIONS, PodReading
from gpucommons.sources.kubernetes.api import ClusterAccess
from gpucommons.sources.kubernetes.pods import LabelNames, LabelPatterns, pod_of
from gpucommons.sources.kubernetes.source import PodFollower
from gpucommons.sources.source import SourceError
from testbeds.following import eventually, eventually_fails, following

CONTAINER = "ab" * 32
HASH = "0123456789abcdef" * 2


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


class Bench:
    """One API server and one follower."""

    def __init__(self, tmp_path: Path, authority: Authority, *pods: object) -> None:
        self.server = ApiServer(*pods)  # type: ignore[arg-type]
        self.server.token = "first"
        self.tls = authority.server_tls("127.0.0.1")
        self.ca_path = str(authority.path)
        self.token = tmp_path / "token"
        self.token.write_text("first\n")

    def source(self, watch_s: float = 60.0, first_s: float = 0.01, **more: object) -> PodFollower:
        access = ClusterAccess(self.server.url, "node-1", self.ca_path, str(self.token))
        return PodFollower(
            access,
            timeout_s=0.5,
            watch_s=watch_s,
            backoff=Backoff(first_s, 4 * first_s),
            **more,  # type: ignore[arg-type]
        )

    @asynccontextmanager
    async def followed(
        self, watch_s: float = 60.0, first_s: float = 0.01, **more: object
    ) -> AsyncIterator[PodFollower]:
        """The follower at work, and the server that it follows."""
        async with self.server.serving(self.tls):
            source = self.source(watch_s, first_s, **more)
            async with following(source):
                yield source


@pytest.fixture
def bench(tmp_path: Path, authority: Authority) -> Callable[..., Bench]:
    return lambda *pods: Bench(tmp_path, authority, *pods)


def names(reading: PodReading) -> list[str]:
    return sorted(pod.name for pod in reading.by_uid.values())


async def eventually_has(source: PodFollower, *expected: str) -> PodReading:
    return await eventually(lambda: r if names(r := source.read()) == sorted(expected) else None)


def test_pods_are_added_changed_and_removed(bench: Callable[..., Bench]) -> None:
    async def scenario() -> None:
        b = bench(pod("train"), pod("elsewhere", node="node-2"))
        async with b.followed(allowed_labels=("team",)) as source:
            await eventually_has(source, "train")
            await b.server.change("ADDED", pod("infer", status__phase="Pending"))
            assert (await eventually_has(source, "train", "infer")).by_uid["uid-of-infer"].phase == "Pending"
            limits = dict.fromkeys(QUOTA_ANNOTATIONS, "50")
            changed = pod(
                "infer",
                metadata__labels={"team": "vision", "secret-plan": "x"},
                metadata__annotations={**limits, "x": "y"},
                status__containerStatuses=[{"name": "main", "containerID": f"containerd://{CONTAINER}"}],
            )
            await b.server.change("MODIFIED", changed)
            found = await eventually(lambda: source.read().by_container_id.get(CONTAINER))
            assert (found.uid, found.phase) == ("uid-of-infer", "Running")
            assert found.labels == {"team": "vision"}
            assert found.annotations == limits
            assert found.containers == {CONTAINER: "main"}
            await b.server.change("DELETED", pod("train"))
            await eventually_has(source, "infer")
        assert len(b.server.lists) == 1
        assert len(b.server.watches) == 1
        assert b.server.lists[0]["resourceVersion"] == "0"
        for query in (*b.server.lists, *b.server.watches):
            assert query["fieldSelector"] == "spec.nodeName=node-1"
        assert b.server.watches[0]["allowWatchBookmarks"] == "true"

    asyncio.run(scenario())


def test_two_pods_of_one_name_in_two_namespaces_stay_apart(bench: Callable[..., Bench]) -> None:
    async def scenario() -> None:
        other = pod("train", metadata__namespace="other", metadata__uid="another uid")
        b = bench(pod("train"), other)
        async with b.followed() as source:
            reading = await eventually_has(source, "train", "train")
            assert {p.namespace for p in reading.by_uid.values()} == {"lab", "other"}

    asyncio.run(scenario())


def test_a_static_pod_is_found_by_its_configuration_hash(bench: Callable[..., Bench]) -> None:
    async def scenario() -> None:
        annotations = {"kubernetes.io/config.hash": HASH, "kubernetes.io/config.mirror": HASH}
        b = bench(pod("etcd-node-1", metadata__annotations=annotations), pod("train"))
        async with b.followed() as source:
            reading = await eventually_has(source, "etcd-node-1", "train")
            static = reading.find(HASH)
            assert static is not None
            assert static.name == "etcd-node-1"
            assert reading.find("uid-of-etcd-node-1") is static
            assert reading.find("uid-of-train") is not static
            assert reading.find("unknown") is None

    asyncio.run(scenario())


def test_pages_are_combined_into_one_list(bench: Callable[..., Bench]) -> None:
    async def scenario() -> None:
        b = bench(*(pod(f"p{number}") for number in range(250)))
        async with b.followed() as source:
            await eventually_has(source, *(f"p{number}" for number in range(250)))
        assert len(b.server.lists) == 3

    asyncio.run(scenario())


def test_pods_of_other_nodes_are_ignored(bench: Callable[..., Bench]) -> None:
    async def scenario() -> None:
        b = bench(pod("train"), pod("elsewhere", node="node-2"))
        b.server.honours_selector = False
        async with b.followed() as source:
            await eventually_has(source, "train")
            await b.server.watched()
            await b.server.change("ADDED", pod("too", node="node-3"))
            await b.server.change("ADDED", pod("infer"))
            await eventually_has(source, "train", "infer")

    asyncio.run(scenario())


def test_a_broken_watch_is_resumed_at_its_position(bench: Callable[..., Bench]) -> None:
    async def scenario() -> None:
        b = bench(pod("train"))
        async with b.followed() as source:
            await eventually_has(source, "train")
            await b.server.watched()
            await b.server.change("ADDED", pod("infer"))
            await eventually_has(source, "train", "infer")
            stood_at = b.server.version
            # In the middle of a line: an incomplete event is ignored.
            await b.server.cut_watches(rest=b'{"type":"DELETED","object":{"metadata":{"uid":"uid-of-train"')
            assert names(source.read()) == ["infer", "train"]
            while len(b.server.watches) < 2:
                source.read()
                await asyncio.sleep(0.002)
            await b.server.change("ADDED", pod("later"))
            await eventually_has(source, "train", "infer", "later")
        assert b.server.watches[1]["resourceVersion"] == str(stood_at)
        assert len(b.server.lists) == 1

    asyncio.run(scenario())


def test_a_watch_that_ends_as_requested_is_continued(bench: Callable[..., Bench]) -> None:
    async def scenario() -> None:
        b = bench(pod("train"))
        async with b.followed(watch_s=1.3) as source:
            await eventually_has(source, "train")
            while len(b.server.watches) < 2:
                source.read()
                await asyncio.sleep(0.01)
            await b.server.change("ADDED", pod("infer"))
            await eventually_has(source, "train", "infer")
        assert len(b.server.lists) == 1

    asyncio.run(scenario())


def standing(source: PodFollower) -> str | None:
    return source._table.resource_version if source._table else None


def test_a_bookmark_advances_the_position(bench: Callable[..., Bench]) -> None:
    async def scenario() -> None:
        b = bench(pod("train"))
        async with b.followed() as source:
            await eventually_has(source, "train")
            await b.server.watched()
            b.server.version += 1000
            await b.server.change("BOOKMARK", {"kind": "Pod", "metadata": {}})
            marked = b.server.version
            await eventually(lambda: True if standing(source) == str(marked) else None)
            b.server.forget_history()
            b.server.oldest = marked
            await b.server.cut_watches()
            await b.server.watched(2)
            assert names(source.read()) == ["train"]
        assert b.server.watches[1]["resourceVersion"] == str(marked)
        assert len(b.server.lists) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("in_stream", [False, True])
def test_410_gone_means_a_new_list(bench: Callable[..., Bench], in_stream: bool) -> None:
    async def scenario() -> None:
        b = bench(pod("train"), pod("old"))
        b.server.expires_in_stream = in_stream
        async with b.followed() as source:
            await eventually_has(source, "train", "old")
            await b.server.watched()
            await b.server.cut_watches()
            # No watch reports this change.
            await b.server.change("DELETED", pod("old"))
            await b.server.change("ADDED", pod("new"))
            b.server.forget_history()
            await eventually_has(source, "train", "new")
        assert len(b.server.lists) == 2
        assert "resourceVersion" not in b.server.lists[1], "a list from the cache could be as old as the watch"

    asyncio.run(scenario())


FAULTS = [
    pytest.param(status(500), "status", id="500"),
    pytest.param(status(503), "status", id="503"),
    pytest.param(status(429), "status", id="429"),
    pytest.param(silence, "timeout", id="silence"),
    pytest.param(body(b'{"kind": "PodList", "metadata"', promised=5000), "garbage", id="truncated"),
    pytest.param(body(b"<html>log in first</html>"), "garbage", id="a login page"),
    pytest.param(body(b"{}"), "garbage", id="another document"),
    pytest.param(body(b'{"kind": "PodList", "items": []}'), "garbage", id="no version"),
]


@pytest.mark.parametrize(("fault", "reason"), [*FAULTS, pytest.param(trickle, "timeout", id="trickle")])
def test_a_failed_list_is_reported_and_retried(bench: Callable[..., Bench], fault: object, reason: str) -> None:
    async def scenario() -> None:
        b = bench(pod("train"))
        b.server.list_faults = [fault]  # type: ignore[list-item]
        async with b.followed(first_s=0.1) as source:
            await eventually_fails(source, reason)
            await eventually_has(source, "train")

    asyncio.run(scenario())


@pytest.mark.parametrize(("fault", "reason"), FAULTS[:6])
def test_a_failed_watch_is_reported_and_resumed_without_a_list(
    bench: Callable[..., Bench], fault: object, reason: str
) -> None:
    async def scenario() -> None:
        b = bench(pod("train"))
        async with b.followed(first_s=0.1) as source:
            await eventually_has(source, "train")
            await b.server.watched()
            b.server.watch_faults = [fault, fault]  # type: ignore[list-item]
            await b.server.cut_watches()
            await eventually_fails(source, reason)
            await b.server.change("ADDED", pod("infer"))
            await eventually_has(source, "train", "infer")
        assert len(b.server.lists) == 1

    asyncio.run(scenario())


def test_a_server_that_ends_each_watch_immediately_is_retried_with_back_off(bench: Callable[..., Bench]) -> None:
    async def scenario() -> None:
        b = bench(pod("train"))
        b.server.watch_faults = [body(b"")] * 1000
        async with b.followed(first_s=0.05) as source:
            await eventually_fails(source, "disconnected")
            await asyncio.sleep(0.5)
            assert len(b.server.watches) < 12
            b.server.watch_faults.clear()
            await eventually_has(source, "train")

    asyncio.run(scenario())


def test_a_server_that_dies_and_returns(bench: Callable[..., Bench]) -> None:
    async def scenario() -> None:
        b = bench(pod("train"))
        first = b.server.serving(b.tls)
        await first.__aenter__()
        source = b.source()
        async with following(source):
            await eventually_has(source, "train")
            await first.__aexit__(None, None, None)
            await eventually_fails(source, "unreachable")
            async with b.server.serving(b.tls, port=int(b.server.url.rpartition(":")[2])):
                await eventually_has(source, "train")
                await b.server.change("ADDED", pod("infer"))
                await eventually_has(source, "train", "infer")
                assert source._backoff.next_s() <= 0.01, "the back-off was reset"

    asyncio.run(scenario())


def test_a_renewed_token_is_used_and_a_rejected_one_is_reported(bench: Callable[..., Bench]) -> None:
    async def scenario() -> None:
        b = bench(pod("train"))
        async with b.followed() as source:
            await eventually_has(source, "train")
            await b.server.watched()
            b.server.token = "second"
            await b.server.cut_watches()
            failure = await eventually_fails(source, "denied")
            assert str(b.token) in str(failure)
            b.token.write_text("second")
            await eventually_has(source, "train")
            assert len(b.server.lists) == 1
            b.token.write_text("bad\ntoken")
            await b.server.watched(2)
            await b.server.cut_watches()
            await eventually_fails(source, "token")
            os.unlink(b.token)
            await eventually(lambda: True if "cannot read" in failure_of(source) else None)

    asyncio.run(scenario())


def failure_of(source: PodFollower) -> str:
    try:
        source.read()
    except SourceError as error:
        return str(error)
    return ""


def test_missing_rights_are_reported(bench: Callable[..., Bench]) -> None:
    async def scenario() -> None:
        b = bench(pod("train"))
        b.server.list_faults = [status(403)]
        async with b.followed(first_s=0.1) as source:
            failure = await eventually_fails(source, "denied")
            assert str(failure).endswith("grant its service account list and watch on pods, cluster-wide")

    asyncio.run(scenario())


def test_a_server_of_another_authority_is_not_trusted(
    bench: Callable[..., Bench], authority: Authority, tmp_path: Path
) -> None:
    async def scenario() -> None:
        b = bench(pod("train"))
        impostor = Authority(tmp_path, "impostor")
        async with b.server.serving(impostor.server_tls("127.0.0.1")):
            source = b.source()
            async with following(source):
                await eventually_fails(source, "tls")
        async with b.server.serving(authority.server_tls("127.0.0.9")):
            source = b.source()
            async with following(source):
                await eventually_fails(source, "tls")
        assert b.server.lists == [], "no token was sent to an unverified server"
        b.ca_path = str(b.token)
        source = b.source()
        async with following(source):
            assert "contains no certificate" in str(await eventually_fails(source, "tls"))

    asyncio.run(scenario())


def test_a_redirect_is_not_followed_with_our_token(bench: Callable[..., Bench]) -> None:
    async def away(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(location="/pods")

    async def scenario() -> None:
        b = bench(pod("train"))
        b.server.list_faults = [away]
        async with b.followed(first_s=0.1) as source:
            assert "302" in str(await eventually_fails(source, "status"))
        assert len(b.server.lists) == 1

    asyncio.run(scenario())


def test_labels_are_kept_by_name_and_by_pattern() -> None:
    labels = {"team": "vision", "app.kubernetes.io/name": "x", "secret": "s"}
    document = {"metadata": {"uid": "u", "name": "n", "namespace": "ns", "labels": labels}}
    kept = pod_of(document, LabelPatterns(["team"], ["^app"]))
    assert kept is not None
    assert kept.labels == {"team": "vision", "app.kubernetes.io/name": "x"}
    every = pod_of(document, LabelPatterns([], [""]))
    assert every is not None
    assert every.labels == labels, "an empty pattern fits all"
    none = pod_of(document, LabelPatterns([], []))
    assert none is not None
    assert none.labels == {}
    many = {"metadata": {"uid": "u", "name": "n", "namespace": "ns", "labels": {f"l{i}": "" for i in range(500)}}}
    bounded = pod_of(many, LabelPatterns([], [""]))
    assert bounded is not None
    assert len(bounded.labels) == 64


def test_the_dcgm_dialect_decides_which_labels_of_pods_are_read() -> None:
    def allowed(**dcgm: object) -> LabelNames:
        follower = pod_follower(KubernetesSettings(pod_labels="owner"), DcgmSettings(**dcgm))  # type: ignore[arg-type]
        return follower._allowed_labels

    assert "owner" in allowed()
    assert "team" not in allowed(pod_label_allowlist="team"), "it shows no labels"
    assert "team" in allowed(pod_labels=True)
    assert "team" in allowed(pod_labels=True, pod_label_allowlist="^app, ^team$")
    assert "teams" not in allowed(pod_labels=True, pod_label_allowlist="^app, ^team$")
