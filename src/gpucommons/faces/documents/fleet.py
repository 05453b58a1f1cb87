"""The slots of all nodes, free ones first, and the fleet in one sentence: the document of /api/v1/fleet. Pure."""

from gpucommons.faces.documents.node import SUMMARY_RECORD
from gpucommons.faces.documents.schema import (
    FLAG,
    INTEGER,
    INTEGER_OR_NULL,
    NUMBER,
    NUMBER_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    Record,
    Schema,
    by_key,
    describe,
    list_of,
    one_of,
    or_null,
    record,
)
from gpucommons.faces.documents.values import Json, round_value
from gpucommons.faces.documents.view import HIDDEN
from gpucommons.model.fleet import FleetNode, FleetSlot, FleetState, FleetView
from gpucommons.model.viewer import Viewer
from gpucommons.rules.privacy import find_fleet_hidden, redact_fleet
from gpucommons.rules.problems import problem_place, problem_words
from gpucommons.rules.summary import fleet_summary

SUMMARY = "slots of all nodes, from the Prometheus that scrapes them"

_NODE = Record[FleetNode](
    name=(TEXT, lambda node: node.name),
    page_url=(
        describe(TEXT_OR_NULL, "address of its page; null where the labels give no safe one"),
        lambda node: node.page_url,
    ),
    answers=(describe(FLAG, "whether Prometheus can scrape it now"), lambda node: node.answers),
    last_seen_unix_s=(
        describe(NUMBER_OR_NULL, "time of its last snapshot; null if more than an hour ago"),
        lambda node: round_value(node.last_seen_wall_s, 0),
    ),
    simulated=(describe(TEXT_OR_NULL, "the simulated scenario"), lambda node: node.simulated or None),
    waiting=(describe(INTEGER_OR_NULL, "requests that wait for a lease"), lambda node: node.waiting),
    problems=(
        describe(by_key(INTEGER, "kind, as in /api/v1/problems"), "how many it has of each kind, the gravest first"),
        lambda node: {kind: node.problems[kind] for kind in sorted(node.problems, key=problem_place)},
    ),
    problem_sentence=(describe(TEXT, "its problems in words; empty: none"), lambda node: problem_words(node.problems)),
)
_SLOT = Record[FleetSlot](
    node=(describe(TEXT, "the key of its node"), lambda slot: slot.node),
    slot=(TEXT, lambda slot: slot.slot),
    uuid=(TEXT, lambda slot: slot.uuid),
    gpu_uuid=(TEXT, lambda slot: slot.gpu_uuid),
    gpu_index=(INTEGER_OR_NULL, lambda slot: slot.gpu_index),
    model=(describe(TEXT, "may be empty"), lambda slot: slot.model),
    profile=(describe(TEXT, "the profile of a MIG device; empty for a whole GPU"), lambda slot: slot.profile),
    state=(
        describe(one_of(*FleetState), "as in /api/v1/slots; silent: its node does not answer"),
        lambda slot: slot.state.value,
    ),
    holders=(describe(list_of(TEXT), "billed names, the largest share first"), lambda slot: list(slot.holders)),
    hidden_holders=(
        describe(INTEGER, "holders that are hidden from this viewer"),
        lambda slot: slot.hidden_holders,
    ),
    since_unix_s=(NUMBER_OR_NULL, lambda slot: round_value(slot.since_wall_s, 0)),
    idle_s=(NUMBER_OR_NULL, lambda slot: round_value(slot.idle_s, 0)),
    utilization_ratio=(NUMBER_OR_NULL, lambda slot: round_value(slot.utilization_ratio, 3)),
    memory_total_bytes=(INTEGER_OR_NULL, lambda slot: slot.memory_total_bytes),
    memory_free_bytes=(INTEGER_OR_NULL, lambda slot: slot.memory_free_bytes),
    waiting=(describe(INTEGER, "clients that wait for a turn"), lambda slot: slot.waiting),
    paused=(describe(INTEGER, "programs that are paused until their turn"), lambda slot: slot.paused),
    parked=(describe(INTEGER, "programs whose GPU memory is in host memory"), lambda slot: slot.parked),
)
_FLEET = Record[FleetView](
    time_unix_s=(describe(NUMBER, "when Prometheus was queried"), lambda view: round_value(view.time_wall_s, 3)),
    summary=(SUMMARY_RECORD.schema, lambda view: SUMMARY_RECORD.build(fleet_summary(view))),
    nodes=(
        by_key(_NODE.schema, "instance, as Prometheus names the target"),
        lambda view: {node.instance: _NODE.build(node) for node in view.nodes},
    ),
    slots=(
        describe(list_of(_SLOT.schema), "free slots first, then those that are held idle, the longest first"),
        lambda view: [_SLOT.build(slot) for slot in view.slots],
    ),
)
SCHEMA: Schema = record(
    hidden=or_null(HIDDEN.schema),
    fleet=describe(or_null(_FLEET.schema), "null where fleet.prometheus_url is not set"),
)


def fleet_document(view: FleetView | None, viewer: Viewer) -> Json:
    seen = None if view is None else redact_fleet(view, viewer)
    hidden = None if seen is None else find_fleet_hidden(viewer)
    return {"hidden": HIDDEN.build_or_null(hidden), "fleet": _FLEET.build_or_null(seen)}
