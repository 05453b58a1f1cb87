"""The parts of each GPU sum to what the GPU reports, however they are grouped."""

import pytest

from demo_node import DemoNode
from played import Played

NODE = DemoNode(gpus=8, processes_a_gpu=5)


def test_owners_and_unattributed_parts_sum_to_the_gpu() -> None:
    played = Played(NODE).play(3)
    who, gpus = played.get("who")["who"], played.get("gpus")["gpus"]["by_uuid"]
    for uuid, gpu in gpus.items():
        shares = [owner["by_gpu"][uuid] for owner in who["owners"].values() if uuid in owner["by_gpu"]]
        rest = list(who["unattributed"].get(uuid, {}).values())
        memory = sum(part["memory_bytes"] or 0 for part in shares + rest)
        assert memory == gpu["memory_used_bytes"]
        power = sum(part["power_watts"] or 0 for part in shares + rest)
        assert power == pytest.approx(gpu["power_watts"], abs=0.01)
        sm = sum(part["sm_ratio"] or 0 for part in shares + rest)
        assert sm == pytest.approx(gpu["utilization_ratio"], abs=1e-5)


def test_an_owner_is_the_sum_of_its_gpus_and_measured_only_if_all_parts_are() -> None:
    for owner in Played(NODE).play(1).get("who")["who"]["owners"].values():
        parts = owner["by_gpu"].values()
        assert owner["memory_bytes"] == sum(part["memory_bytes"] for part in parts)
        assert owner["processes"] == sum(part["processes"] for part in parts)
        apportioned = any(part["sm_basis"] == "apportioned" for part in parts)
        assert owner["sm_basis"] == ("apportioned" if apportioned else "measured")


@pytest.mark.parametrize(("by", "field"), [("user", "uid"), ("pod", "pod_uid"), ("container", "container_id")])
def test_groups_contain_every_process_with_that_identity(by: str, field: str) -> None:
    answer = Played(NODE).play(1).get(f"who?by={by}")
    rows = [row for row in answer["who"]["processes"].values() if row[field] is not None]
    assert set(answer["groups"]) == {str(row[field]) for row in rows}
    for identity, group in answer["groups"].items():
        members = [row for row in rows if str(row[field]) == identity]
        assert group["memory_bytes"] == sum(row["memory_bytes"] for row in members)
        assert group["gpu_indexes"] == sorted({row["gpu_index"] for row in members})


def test_filter_by_owner() -> None:
    played = Played(NODE).play(1)
    who = played.get("who?owner=user/1001")["who"]
    assert set(who["owners"]) == {"user/1001"}
    assert {row["owner"] for row in who["processes"].values()} == {"user/1001"}
    assert who["unattributed"] == {}
    assert played.get("who?owner=user/4")["who"]["owners"] == {}


def test_an_owner_has_its_gpu_hours_of_today() -> None:
    owners = Played(NODE).play(1).get("who")["who"]["owners"]
    assert owners["user/1000"]["gpu_hours_today"] == 9.0
    assert next(owner for key, owner in owners.items() if key.startswith("pod/"))["gpu_hours_today"] is None
