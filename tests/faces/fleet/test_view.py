"""From samples of Prometheus to nodes and slots: duplicates, missing labels, nodes that no longer answer."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.faces.fleet import queries
from gpucommons.faces.fleet.queries import FleetAnswers, Sample
from gpucommons.faces.fleet.view import fleet_view, silent_targets
from gpucommons.model.fleet import FleetNode, FleetSlot, FleetState, FleetView
from gpucommons.model.problems import ProblemKind
from gpucommons.rules.problems import problem_words
from gpucommons.rules.summary import fleet_summary
from unhurried import costly

NOW = 1_800_000_000.0
PAGE = "http://{instance}/"


def reading(metric: str, instance: str, value: float | None = 1.0, **labels: str) -> Sample:
    return Sample({"__name__": metric, "instance": instance, "job": "gpu", **labels}, value)


def state(instance: str, uuid: str, state: str, slot: str = "0", at_s: float = NOW, **labels: str) -> Sample:
    given = {"instance": instance, "job": "gpu", "slot": slot, "uuid": uuid, "gpu_uuid": uuid, "gpu": slot}
    return Sample({**given, "state": state, **labels}, at_s)


def alive(*instances: str, **labels: str) -> dict[str, list[Sample]]:
    return {
        "readings": [reading(queries.SNAPSHOT_TIME, each, NOW - 1, **labels) for each in instances],
        "seen": [reading(queries.SNAPSHOT_TIME, each, NOW - 1, **labels) for each in instances],
    }


def by_metric(rows: Sequence[Sample]) -> dict[str, list[Sample]]:
    names = {row.labels.get("__name__", "") for row in rows}
    return {name: [row for row in rows if row.labels.get("__name__", "") == name] for name in names}


def view_of(readings: Sequence[Sample], **parts: Any) -> FleetView:
    return fleet_view(FleetAnswers(NOW, by_metric(readings), **parts), PAGE)


def by_slot(view: FleetView) -> Mapping[tuple[str, str], FleetSlot]:
    return {(slot.node, slot.slot): slot for slot in view.slots}


def by_instance(view: FleetView) -> Mapping[str, FleetNode]:
    return {node.instance: node for node in view.nodes}


def test_a_slot_has_its_readings_and_holders() -> None:
    answers = alive("gpu1:9460")
    of_slot = {"slot": "0", "uuid": "A"}
    answers["readings"] += [
        reading(queries.GPU_INFO, "gpu1:9460", name="NVIDIA H200", uuid="A", gpu="0"),
        reading(queries.HOLDER, "gpu1:9460", 0.25, holder="bob", **of_slot),
        reading(queries.HOLDER, "gpu1:9460", 0.75, holder="alice", **of_slot),
        reading(queries.IDLE, "gpu1:9460", 90.0, **of_slot),
        reading(queries.SINCE, "gpu1:9460", NOW - 100, **of_slot),
        reading(queries.UTILIZATION, "gpu1:9460", 0.0, **of_slot),
        reading(queries.MEMORY, "gpu1:9460", 141.0, which="total", **of_slot),
        reading(queries.MEMORY, "gpu1:9460", 22.0, which="free", **of_slot),
        reading(queries.QUEUED, "gpu1:9460", 2.0, queue="paused", uuid="A", gpu="0"),
        reading(queries.LEASES_WAITING, "gpu1:9460", 3.0, user="chen"),
        reading(queries.LEASES_WAITING, "gpu1:9460", 1.0, user="dana"),
    ]
    view = view_of(**answers, states=[state("gpu1:9460", "A", "held_idle")])
    assert view.slots == (
        FleetSlot(
            *("gpu1:9460", "0", "A", "A", 0, "NVIDIA H200", "", FleetState.HELD_IDLE, ("alice", "bob"), 0),
            *(NOW - 100, 90.0, 0.0, 141, 22, 0, 2, 0),
        ),
    )
    assert view.nodes == (FleetNode("gpu1:9460", "gpu1", "http://gpu1:9460/", True, NOW - 1, "", 4),)
    sentence = "0 free · 1 held idle · 6 waiting"
    assert fleet_summary(view).sentence == sentence
    assert [part.detail for part in fleet_summary(view).parts][:2] == [
        "of 1 slot on 1 node",
        "longest alice, bob on gpu1 GPU 0, 90 s",
    ]


def test_every_problem_of_a_node_is_listed_gravest_first() -> None:
    view = view_of(
        [
            *alive("gpu1:9460", "gpu2:9460")["readings"],
            reading(queries.PROBLEMS, "gpu1:9460", 2.0, kind="xid"),
            reading(queries.PROBLEMS, "gpu1:9460", 1.0, kind="driver"),
            reading(queries.PROBLEMS, "gpu1:9460", 0.0, kind="ecc"),
            reading(queries.PROBLEMS, "gpu1:9460", 1.0, kind="of_a_newer_agent"),
        ]
    )
    assert by_instance(view)["gpu1:9460"].problems == {"xid": 2, "driver": 1, "of_a_newer_agent": 1}
    assert by_instance(view)["gpu2:9460"].problems == {}
    assert problem_words(by_instance(view)["gpu1:9460"].problems) == (
        "driver does not answer, 2 x XID error, of a newer agent"
    )
    assert fleet_summary(view).sentence.startswith("1 node with problems")


@pytest.mark.parametrize("kind", ProblemKind)
def test_every_kind_of_problem_has_words_and_a_row_on_the_page_about_problems(kind: ProblemKind) -> None:
    assert re.fullmatch(r"[A-Za-z][A-Za-z ]+", problem_words({kind: 1})), "words, not the name of a kind"
    page = Path(__file__).resolve().parents[3] / "docs" / "page.md"
    assert f"\n| `{kind}` | " in page.read_text()


def test_what_is_not_a_number_is_missing_and_not_zero() -> None:
    answers = alive("a:1")
    answers["readings"] += [
        reading(name, "a:1", None, slot="0", uuid="A", which="free") for name in (queries.UTILIZATION, queries.MEMORY)
    ]
    (slot,) = view_of(**answers, states=[state("a:1", "A", "busy", at_s=NOW)]).slots
    assert (slot.utilization_ratio, slot.memory_free_bytes, slot.since_wall_s) == (None, None, None)


def test_two_jobs_that_scrape_the_same_target_are_one_node() -> None:
    twice = {
        "readings": [reading(queries.SNAPSHOT_TIME, "gpu1:9460", NOW, job=job) for job in ("a", "b")]
        + [reading(queries.HOLDER, "gpu1:9460", 1.0, job=job, holder="alice", uuid="A") for job in ("a", "b")],
        "states": [
            state("gpu1:9460", "A", "free", job="a", at_s=NOW - 30),
            state("gpu1:9460", "A", "busy", job="b", at_s=NOW - 2),
        ],
    }
    view = view_of(**twice)
    assert [(slot.state, slot.holders) for slot in view.slots] == [(FleetState.BUSY, ("alice",))]
    assert len(view.nodes) == 1
    first, second = twice["states"]
    (slot,) = view_of(**{**twice, "states": [first._replace(value=NOW), second]}).slots
    assert slot.state is FleetState.FREE, "the newer of the two counts"
    (slot,) = view_of(**{**twice, "states": [first, second._replace(value=first.value)]}).slots
    assert slot.state is FleetState.BUSY, "of equal age, the one that promises less"


def test_listeners_and_names_of_one_node_are_one_node() -> None:
    instances = ("gpu1:9460", "gpu1:9999", "10.0.0.1:9460")
    states = [state(each, "A", "free") for each in instances] + [state("gpu1:9460", "B", "busy", "1")]
    view = view_of(**alive(*instances), states=states)
    assert [node.instance for node in view.nodes] == ["gpu1:9460"], "the target with the most GPUs stands for the node"
    assert {slot.uuid: slot.node for slot in view.slots} == {"A": "gpu1:9460", "B": "gpu1:9460"}


def test_simulated_nodes_have_the_same_uuids_and_are_different_nodes() -> None:
    answers = alive("a:1", "b:1")
    answers["readings"] += [reading(queries.SIMULATED, each, scenario="lab") for each in ("a:1", "b:1")]
    states = [state(each, "A", "free") for each in ("a:1", "b:1")]
    view = view_of(**answers, states=states)
    assert len(view.slots) == 2
    assert {node.simulated for node in view.nodes} == {"lab"}
    gone = {**answers, "readings": [row for row in answers["readings"] if row.instance == "a:1"]}
    view = view_of(**gone, states=states[:1], remembered_states=states[1:])
    assert {slot.node: slot.state for slot in view.slots} == {"a:1": FleetState.FREE, "b:1": FleetState.SILENT}


def test_mig_devices_are_slots_of_their_gpu() -> None:
    answers = alive("a:1")
    answers["readings"] += [
        reading(queries.GPU_INFO, "a:1", name="NVIDIA H200", uuid="G", gpu="6"),
        reading(queries.QUEUED, "a:1", 1.0, queue="waiting", uuid="G", gpu="6"),
    ]
    states = [
        state("a:1", f"MIG-{n}", "free" if n else "busy", f"6.{n}", gpu_uuid="G", gpu="6", profile="1g.18gb")
        for n in range(3)
    ]
    view = view_of(**answers, states=states)
    assert [(slot.slot, slot.state, slot.model, slot.profile, slot.gpu_index) for slot in view.slots] == [
        ("6.1", "free", "NVIDIA H200", "1g.18gb", 6),
        ("6.2", "free", "NVIDIA H200", "1g.18gb", 6),
        ("6.0", "busy", "NVIDIA H200", "1g.18gb", 6),
    ]
    assert sum(slot.waiting for slot in view.slots) == 1, "a client of the GPU is counted once"


def test_a_gpu_without_a_slot_is_unknown_and_not_missing() -> None:
    answers = alive("old:9460")
    answers["readings"] += [reading(queries.GPU_INFO, "old:9460", name="NVIDIA T4", uuid="T", gpu="2")]
    (slot,) = view_of(**answers).slots
    assert (slot.slot, slot.uuid, slot.model, slot.state) == ("2", "T", "NVIDIA T4", FleetState.UNKNOWN)


def test_a_node_that_stopped_answering_is_listed_with_its_slots() -> None:
    answers = alive("a:1")
    answers["seen"] += [reading(queries.SNAPSHOT_TIME, "gpu7:9460", NOW - 1200)]
    assert silent_targets(FleetAnswers(NOW, by_metric(answers["readings"]), seen=answers["seen"])) == ["gpu7:9460"]
    view = view_of(
        **answers,
        remembered_states=[state("gpu7:9460", "Z", "free"), state("gpu7:9460", "Z", "busy")],
        remembered_gpus=[
            reading(queries.GPU_INFO, "gpu7:9460", uuid="Z", gpu="0", name="NVIDIA H200"),
            reading(queries.GPU_INFO, "gpu7:9460", uuid="Y", gpu="1", name="NVIDIA H200"),
        ],
    )
    node = by_instance(view)["gpu7:9460"]
    assert (node.answers, node.last_seen_wall_s) == (False, NOW - 1200)
    assert {slot.uuid: (slot.state, slot.model) for slot in view.slots} == {
        "Z": (FleetState.SILENT, "NVIDIA H200"),
        "Y": (FleetState.SILENT, "NVIDIA H200"),
    }
    assert fleet_summary(view).sentence == "1 node not answering · 0 free"


def test_a_node_that_is_scraped_under_another_name_now_is_not_silent() -> None:
    answers = alive("new:9460")
    answers["seen"] += [reading(queries.SNAPSHOT_TIME, "old:9460", NOW - 600)]
    now = [state("new:9460", "A", "free")]
    before = [state("old:9460", "A", "free")]
    view = view_of(**answers, states=now, remembered_states=before)
    assert list(by_instance(view)) == ["new:9460"]
    moved = [*before, state("old:9460", "B", "free", "1")]
    view = view_of(**answers, states=now, remembered_states=moved)
    assert {slot.uuid: (slot.node, slot.state) for slot in view.slots} == {
        "A": ("new:9460", FleetState.FREE),
        "B": ("old:9460", FleetState.SILENT),
    }


def test_a_target_that_was_down_for_longer_than_an_hour_is_listed() -> None:
    answers = alive("gpu1:9460")
    down = [
        Sample({"instance": "gpu9:9460", "job": "gpu"}, 0.0),
        Sample({"instance": "gpu1:9100", "job": "gpu"}, 0.0),
        Sample({"instance": "database:9187", "job": "postgres"}, 0.0),
    ]
    view = view_of(**answers, down=down)
    assert list(by_instance(view)) == ["gpu1:9460", "gpu9:9460"], "no other job, and no other listener of gpu1"
    node = by_instance(view)["gpu9:9460"]
    assert (node.answers, node.last_seen_wall_s) == (False, None)
    view = fleet_view(FleetAnswers(NOW, down=down[:1], selected=True), PAGE)
    assert list(by_instance(view)) == ["gpu9:9460"], "a selector chooses the nodes"


def test_names_come_from_the_label_or_the_host_and_are_distinct() -> None:
    answers = {key: [*alive("a:1", "a:2")[key], *alive("10.0.0.9:9460", node="gpu9")[key]] for key in alive()}
    names = {node.instance: node.name for node in view_of(**answers).nodes}
    assert names == {"a:1": "a:1", "a:2": "a:2", "10.0.0.9:9460": "gpu9"}


def test_free_slots_come_first_and_nodes_are_in_natural_order() -> None:
    nodes = [f"gpu-{n}:9460" for n in (10, 9, 1)]
    states = [state(each, f"{each}-{n}", "free" if n == 1 else "busy", str(n)) for each in nodes for n in (10, 1, 2)]
    view = view_of(**alive(*nodes), states=states)
    assert [node.name for node in view.nodes] == ["gpu-1", "gpu-9", "gpu-10"]
    assert [(slot.node, slot.slot) for slot in view.slots[:5]] == [
        *(("gpu-1:9460", "1"), ("gpu-9:9460", "1"), ("gpu-10:9460", "1")),
        *(("gpu-1:9460", "2"), ("gpu-1:9460", "10")),
    ]


def test_of_slots_that_are_held_idle_the_longest_comes_first() -> None:
    answers = alive("a:1")
    answers["readings"] += [reading(queries.IDLE, "a:1", 10.0 * n, uuid=str(n)) for n in range(4)]
    view = view_of(**answers, states=[state("a:1", str(n), "held_idle", str(n)) for n in range(4)])
    assert [slot.slot for slot in view.slots] == ["3", "2", "1", "0"]


names = st.sampled_from(["", "a:1", "a:2", "b:9460", "[::1]:9460", "x y", "<b>"])
label_sets = st.fixed_dictionaries(
    {},
    optional={
        "__name__": st.sampled_from([*queries.READINGS, "other"]),
        "instance": names,
        "job": st.sampled_from(["", "g", "h"]),
        "node": st.sampled_from(["", "gpu1"]),
        "uuid": st.sampled_from(["", "A", "B", "C"]),
        "gpu_uuid": st.sampled_from(["", "A", "B"]),
        "gpu": st.sampled_from(["", "0", "1", "x", "99999999999999999999999"]),
        "slot": st.sampled_from(["", "0", "1.0"]),
        "state": st.sampled_from(["", "free", "busy", "held_idle", "lost", "melting"]),
        "which": st.sampled_from(["total", "free", "x"]),
        "queue": st.sampled_from(["waiting", "parked"]),
        "holder": st.sampled_from(["", "alice", "bob"]),
        "scenario": st.just("lab"),
    },
)
rows = st.lists(
    st.builds(Sample, label_sets, st.none() | st.floats(allow_nan=False, allow_infinity=False)), max_size=12
)


@pytest.mark.long
@given(st.builds(FleetAnswers, st.just(NOW), rows.map(by_metric), rows, rows, rows, rows, rows, st.booleans()))
def test_any_answer_gives_a_view_in_which_each_slot_is_once_and_belongs_to_a_node(answers: FleetAnswers) -> None:
    view = fleet_view(answers, PAGE)
    nodes = {node.instance for node in view.nodes}
    assert len(nodes) == len(view.nodes) == len({node.name for node in view.nodes})
    keys = [(slot.node, slot.uuid) for slot in view.slots]
    assert len(set(keys)) == len(keys)
    assert {slot.node for slot in view.slots} <= nodes
    answering = {row.instance for row in answers.of(queries.SNAPSHOT_TIME)}
    for node in view.nodes:
        assert node.answers == (node.instance in answering)
        assert node.page_url is None or node.page_url.startswith("http://")
    silent = {node.instance for node in view.nodes if not node.answers}
    for slot in view.slots:
        assert (slot.state is FleetState.SILENT) == (slot.node in silent)
    order = [list(FleetState).index(slot.state) for slot in view.slots]
    assert order == sorted(order)
    assert fleet_summary(view).parts
    assert all(math.isfinite(slot.memory_total_bytes or 0) for slot in view.slots)


@given(st.builds(FleetAnswers, st.just(NOW), rows.map(by_metric), rows, rows), st.randoms(use_true_random=False))
@costly(10)
def test_the_order_of_the_rows_does_not_matter_for_the_states(answers: FleetAnswers, chance: Any) -> None:
    def shuffled(found: Any) -> list[Sample]:
        mixed = list(found)
        chance.shuffle(mixed)
        return mixed

    again = answers._replace(states=shuffled(answers.states), seen=shuffled(answers.seen))
    first, second = fleet_view(answers, PAGE), fleet_view(again, PAGE)
    assert {(s.node, s.uuid): s.state for s in first.slots} == {(s.node, s.uuid): s.state for s in second.slots}
    assert {node.instance for node in first.nodes} == {node.instance for node in second.nodes}
