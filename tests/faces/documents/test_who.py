"""Who: the parts of each GPU sum to what the GPU reports, however they are grouped and filtered."""

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


@pytest.mark.parametrize(("by", "field"), [("user", "account"), ("pod", "pod_uid"), ("container", "container_id")])
def test_groups_hold_every_process_that_has_one(by: str, field: str) -> None:
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


def test_the_hours_of_today_are_those_of_the_accounts() -> None:
    played = Played(NODE).play(1)
    users = played.get("accounts?period=today")["accounts"]["today"]["users"]
    answer = played.get("who?by=user")
    assert answer["who"]["owners"]["user/1000"]["gpu_hours_today"] == users["alice"]["held_gpu_hours"] == 12.6
    for name, group in answer["groups"].items():
        held = users[name]["held_gpu_hours"] if name in users else None
        assert group["gpu_hours_today"] == answer["who"]["accounts"][name]["gpu_hours_today"] == held
    pod = next(owner for key, owner in answer["who"]["owners"].items() if key.startswith("pod/"))
    assert pod["gpu_hours_today"] is None, "not in the ledger, which is not 0 hours"


def test_a_gpu_filter_limits_every_sum() -> None:
    played = Played(NODE).play(1)
    everything, one = played.get("who?by=user"), played.get("who?by=user&gpu=1")
    uuid = next(iter(one["who"]["processes"].values()))["gpu_uuid"]
    assert set(one["who"]["owners"]) < set(everything["who"]["owners"])
    for key, owner in one["who"]["owners"].items():
        part = everything["who"]["owners"][key]["by_gpu"][uuid]
        assert set(owner["by_gpu"]) == {uuid}
        for field in ("memory_bytes", "sm_ratio", "power_watts", "processes", "gpu_hours_today"):
            assert owner[field] == part[field], field
    alice = one["who"]["owners"]["user/1001"]
    assert alice["gpu_hours_today"] == everything["who"]["owners"]["user/1001"]["gpu_hours_today"] / 2
    for name, group in one["groups"].items():
        assert group["gpu_indexes"] == [1]
        assert group["gpu_hours_today"] == everything["who"]["accounts"][name]["by_gpu"].get(uuid)


def test_a_user_filter_limits_every_sum() -> None:
    played = Played(NODE).play(1)
    answer = played.get("who?user=bob")["who"]
    assert {row["account"] for row in answer["processes"].values()} <= {"bob", "research/bob-notebook-0"}
    memory = sum(row["memory_bytes"] for row in answer["processes"].values())
    assert sum(owner["memory_bytes"] for owner in answer["owners"].values()) == memory > 0
    assert answer["unattributed"] == {}


def test_a_mig_device_is_named_by_its_slot() -> None:
    rows = Played(NODE).play(1).get("who?gpu=4")["who"]["processes"].values()
    assert {row["slot"] for row in rows} == {"4.0"}
    assert {row["slot"] for row in Played(NODE).play(1).get("who?gpu=1")["who"]["processes"].values()} == {"1"}
