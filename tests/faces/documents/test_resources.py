"""Every document matches its schema in OpenAPI, on a full node, a node with hostile names and an empty node."""

import gzip
import json
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from demo_node import DemoNode
from gpucommons.faces.web.routes.table import api_routes
from gpucommons.model.snapshot import Readings
from gpucommons.model.viewer import Viewer
from played import Played, snapshot_of

NODES = {
    "full": DemoNode(lost=7, hot=5),
    "hostile": DemoNode(hostile=True),
    "no GPU": DemoNode(gpus=0),
}
PATHS = (
    "",
    "snapshot",
    "gpus",
    "who",
    "who?by=user",
    "who?by=pod",
    "who?by=container",
    "who?user=bob",
    "who?pid=4101",
    "allocations",
    "slots",
    "queue",
    "problems",
    "turns",
    "accounts",
    "accounts?period=7d",
    "events",
    "events?limit=1&type=gpu.xid",
    "events?since=1h&user=bob",
    "fleet",
    "history",
    "history?series=cpu_utilization_ratio&range=15m&points=10",
    "history?series=gpu_power_watts&range=24h",
)
VIEWERS = {"all": Viewer(), "own": Viewer(False, 1001, "bob"), "unidentified": Viewer(False)}


def schema_of(document: Any, path: str) -> Any:
    operation = document["paths"][f"/{path.partition('?')[0]}"]["get"]
    return operation["responses"]["200"]["content"]["application/json"]["schema"]


@cache
def validator_of(path: str) -> Draft202012Validator:
    """The schemas are the same on every node."""
    return Draft202012Validator(schema_of(Played().get("openapi.json"), path))


@cache
def played_node(node: str) -> Played:
    return Played(NODES[node]).play(3)


def check(played: Played, path: str, viewer: Viewer) -> Any:
    answer = played.get(path, viewer)
    wrong = [f"{error.json_path}: {error.message}"[:300] for error in validator_of(path).iter_errors(answer)]
    assert wrong == []
    return answer


@pytest.mark.parametrize("viewer", VIEWERS)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("node", NODES)
def test_a_document_matches_its_schema(node: str, path: str, viewer: str) -> None:
    check(played_node(node), path, VIEWERS[viewer])


@pytest.mark.parametrize("path", PATHS)
def test_a_node_without_readings_has_null_and_never_zero(path: str) -> None:
    played = Played()
    played.show(snapshot_of(Readings()))
    answer = check(played, path, Viewer())
    for part in ("gpus", "who", "allocations", "turns", "accounts", "events", "alerts"):
        assert answer.get(part) is None


def test_openapi_and_index_name_every_route() -> None:
    played = Played()
    document = json.loads(played.response("openapi.json").body)
    assert document["openapi"].startswith("3.1")
    routes = {route.path for route in api_routes(played.api)}
    assert {f"/api/v1{path}" for path in document["paths"]} == routes
    index = played.get("")
    assert set(index["resources"]) == routes
    assert index["version"] == document["info"]["version"]
    assert index["resources"]["/api/v1/gpus"] == {
        "summary": "the GPUs and their readings",
        "parameters": {"gpu": "only this GPU: its index or UUID"},
    }
    for path in document["paths"].values():
        for content in path["get"]["responses"]["200"]["content"].values():
            Draft202012Validator.check_schema(content["schema"])


def test_the_schema_rejects_a_wrong_document() -> None:
    played = Played().play(1)
    validator = Draft202012Validator(schema_of(played.get("openapi.json"), "gpus"))
    answer = played.get("gpus")
    card = next(iter(answer["gpus"]["by_uuid"].values()))
    card["power_watts"] = "a lot"
    del card["name"]
    card["surprise"] = 1
    assert len(list(validator.iter_errors(answer))) >= 1


def test_readings_keep_their_units_and_names() -> None:
    played = Played(DemoNode(lost=7)).play(1)
    gpus = played.get("gpus")["gpus"]
    assert (gpus["expected"], gpus["present"]) == (8, 7)
    card = next(card for card in gpus["by_uuid"].values() if card["index"] == 1)
    reading = played.node.gpu_reading(0.0).gpus[1].readings
    assert card["utilization_ratio"] == (reading.utilization_percent or 0) / 100
    assert card["power_watts"] == round(reading.power_watts or 0, 3)
    assert card["memory_used_bytes"] == reading.memory_used_bytes
    lost = next(card for card in gpus["by_uuid"].values() if card["index"] == 7)
    assert lost["up"] is False
    assert lost["power_watts"] is None, "a lost GPU has no readings; they are not zero"
    assert lost["down_reason"] == "gpu_is_lost"


def test_one_gpu_by_index_or_uuid() -> None:
    played = Played().play(1)
    by_index = played.get("gpus?gpu=2")["gpus"]["by_uuid"]
    (uuid,) = by_index
    assert played.get(f"gpus?gpu={uuid}")["gpus"]["by_uuid"] == by_index
    assert {row["gpu_uuid"] for row in played.get(f"who?gpu={uuid}")["who"]["processes"].values()} == {uuid}
    assert set(played.get("turns?gpu=1")["turns"]["gpus"]) == {played.node.gpu_reading(0).gpus[1].identity.uuid}


@pytest.mark.parametrize(
    ("path", "parameter"),
    [
        ("gpus?gpu=99", "gpu"),
        ("gpus?gpu=", "gpu"),
        ("gpus?gpus=1", "gpus"),
        ("gpus?gpu=1&gpu=2", "gpu"),
        ("who?by=shoe", "by"),
        ("who?owner=", "owner"),
        ("snapshot?x=1", "x"),
        ("accounts?period=1y", "period"),
        ("events?limit=0", "limit"),
        ("events?limit=1e9", "limit"),
        ("events?limit=٣", "limit"),
        ("history?range=forever", "range"),
        ("history?range=0s", "range"),
        ("history?range=99999999d", "range"),
        ("history?range=48h", "range"),
        ("history?series=mood", "series"),
        ("history?points=1", "points"),
        ("history?series=health_score&gpu=1", "gpu"),
        ("history?end_unix_s=5", "end_unix_s"),
        ("stream?speed=fast", "speed"),
    ],
)
def test_a_bad_parameter_is_named(path: str, parameter: str) -> None:
    response = Played().play(1).response(path)
    assert response.status == 400
    error = json.loads(response.body)
    assert error["parameter"] == parameter
    assert parameter in error["error"]
    assert "\n" not in error["error"]


def test_a_document_that_the_peer_has_is_not_sent_again() -> None:
    played = Played().play(1)
    first = played.response("gpus")
    etag = first.headers["ETag"]
    for given in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = played.response("gpus", headers={"If-None-Match": given})
        assert (again.status, again.body) == (304, b"")
        assert again.headers["ETag"] == etag
    assert played.response("gpus", headers={"If-None-Match": '"other"'}).status == 200
    assert played.response("history", headers={"If-None-Match": etag}).status == 304
    assert played.response("gpus", Viewer(False, 1001), {"If-None-Match": etag}).status == 200, (
        "another viewer has another document"
    )
    played.play(1, start_s=1)
    assert played.response("gpus", headers={"If-None-Match": etag}).status == 200
    another_life = Played().play(1)
    assert another_life.response("gpus", headers={"If-None-Match": etag}).status == 200


def test_a_document_is_made_once_per_snapshot_and_compressed_on_request() -> None:
    played = Played().play(1)
    plain = played.response("snapshot")
    assert played.response("snapshot").body is plain.body
    compressed = played.response("snapshot", headers={"Accept-Encoding": "gzip"})
    assert compressed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(compressed.body) == plain.body
    assert len(compressed.body) < len(plain.body) / 4


def test_before_the_first_sample_the_status_is_503() -> None:
    played = Played()
    for path in ("snapshot", "history"):
        assert played.response(path).status == 503
    assert played.api.document(Viewer()) is None
