"""Every resource of the API that is a function of one view: its name, parameters, schema and builder. Pure."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpucommons.faces.documents import accounts, events, gpus, node, queue, slots, turns, who
from gpucommons.faces.documents.parameters import Parameter, Value, event_type, moment, text, whole, word
from gpucommons.faces.documents.schema import Record, Schema, by_key, or_null, record
from gpucommons.faces.documents.values import Json
from gpucommons.faces.documents.view import ENVELOPE, ENVELOPE_FIELDS, View
from gpucommons.model.accounts import PERIODS

_GPU = text("gpu", "only this GPU: its index or UUID")


class Resource(NamedTuple):
    name: str
    summary: str
    schema: Schema
    make: Callable[[View, Mapping[str, Value]], Json]
    parameters: tuple[Parameter, ...] = ()


# All sections in one document. The stream begins with it and then sends deltas.
SNAPSHOT = Record[View](
    **ENVELOPE_FIELDS,
    summary=(node.SUMMARY, lambda view: node.summary(view.snapshot)),
    problems=(node.PROBLEMS_SCHEMA, lambda view: node.problems(view.snapshot)),
    node=(node.NODE_SCHEMA, lambda view: node.node(view.snapshot)),
    gpus=(gpus.SCHEMA, lambda view: gpus.gpus(view.snapshot)),
    slots=(slots.SLOTS_SCHEMA, lambda view: slots.slots(view.snapshot)),
    queue=(queue.SCHEMA, lambda view: queue.queue(view.snapshot)),
    who=(who.SCHEMA, lambda view: who.who(view.snapshot)["who"]),
    turns=(turns.TURNS_SCHEMA, lambda view: turns.turns(view.snapshot, view.timeline)),
    accounts=(accounts.SCHEMA, lambda view: accounts.accounts(view.snapshot)),
    events=(events.EVENTS_SCHEMA, lambda view: events.events(view.snapshot)),
    alerts=(events.ALERTS, lambda view: events.alerts(view.snapshot)),
)


def _problems(view: View, values: Mapping[str, Value]) -> Json:
    judgements = {"summary": node.summary(view.snapshot), "problems": node.problems(view.snapshot)}
    return {**view.envelope(), **judgements}


def _gpus(view: View, values: Mapping[str, Value]) -> Json:
    return {**view.envelope(), "gpus": gpus.gpus(view.snapshot, _uuid(view, values))}


def _who(view: View, values: Mapping[str, Value]) -> Json:
    pid = values.get("pid")
    chosen = who.WhoFilter(
        _uuid(view, values), _text(values, "owner"), _text(values, "user"), None if pid is None else int(pid)
    )
    return {**view.envelope(), **who.who(view.snapshot, chosen, _text(values, "by"))}


def _allocations(view: View, values: Mapping[str, Value]) -> Json:
    return {**view.envelope(), "allocations": slots.allocations(view.snapshot, _text(values, "user"))}


def _slots(view: View, values: Mapping[str, Value]) -> Json:
    return {**view.envelope(), "slots": slots.slots(view.snapshot)}


def _turns(view: View, values: Mapping[str, Value]) -> Json:
    return {**view.envelope(), "turns": turns.turns(view.snapshot, view.timeline, _uuid(view, values))}


def _queue(view: View, values: Mapping[str, Value]) -> Json:
    return {**view.envelope(), "queue": queue.queue(view.snapshot)}


def _messages(view: View, values: Mapping[str, Value]) -> Json:
    return {**view.envelope(), "messages": events.messages(view.snapshot, _text(values, "user"))}


def _accounts(view: View, values: Mapping[str, Value]) -> Json:
    return {**view.envelope(), "accounts": accounts.accounts(view.snapshot, _text(values, "period"))}


def _events(view: View, values: Mapping[str, Value]) -> Json:
    since_s = values.get("since")
    recent = events.events(
        view.snapshot,
        int(values.get("limit", events.SHOWN)),
        None if since_s is None else float(since_s),
        _text(values, "type"),
        _text(values, "user"),
    )
    return {**view.envelope(), "events": recent, "alerts": events.alerts(view.snapshot)}


def _text(values: Mapping[str, Value], name: str) -> str | None:
    return None if name not in values else str(values[name])


def _uuid(view: View, values: Mapping[str, Value]) -> str | None:
    return view.gpu_uuid(str(values["gpu"])) if "gpu" in values else None


RESOURCES: tuple[Resource, ...] = (
    Resource("snapshot", "all sections of the current snapshot", SNAPSHOT.schema, lambda view, _: SNAPSHOT.build(view)),
    Resource(
        "problems",
        "what is wrong, gravest first, with what to do; the node's state in one sentence",
        record(**ENVELOPE, summary=node.SUMMARY, problems=node.PROBLEMS_SCHEMA),
        _problems,
    ),
    Resource("gpus", "the GPUs and their readings", record(**ENVELOPE, gpus=gpus.SCHEMA), _gpus, (_GPU,)),
    Resource(
        "who",
        "use of each GPU by process and owner, and what has no owner",
        record(
            **ENVELOPE,
            who=who.SCHEMA,
            groups=or_null(by_key(who.GROUP, "identity")),
            explanations=who.EXPLANATIONS,
            host_use=who.HOST_USE,
        ),
        _who,
        (
            _GPU,
            text("owner", "only this owner: kind/id"),
            text("user", "only this account, user, uid or owner"),
            word("by", "also group the processes by this", who.GROUPINGS),
            whole("pid", "only this process, with each step that found its owner", 1, 1 << 31),
        ),
    ),
    Resource(
        "allocations",
        "which owner holds which slot",
        record(**ENVELOPE, allocations=slots.ALLOCATIONS_SCHEMA),
        _allocations,
        (text("user", "only what is billed to this user or pod"),),
    ),
    Resource("slots", "state and holders of each slot", record(**ENVELOPE, slots=slots.SLOTS_SCHEMA), _slots),
    Resource(
        "turns",
        "turns on each shared GPU: running and waiting clients",
        record(**ENVELOPE, turns=turns.TURNS_SCHEMA),
        _turns,
        (_GPU,),
    ),
    Resource("queue", "leases, waiting requests and reservations", record(**ENVELOPE, queue=queue.SCHEMA), _queue),
    Resource(
        "messages",
        "messages to holders of idle GPUs, newest first",
        record(**ENVELOPE, messages=events.MESSAGES_SCHEMA),
        _messages,
        (text("user", "only messages to this user"),),
    ),
    Resource(
        "accounts",
        "GPU-hours and energy by user",
        record(**ENVELOPE, accounts=accounts.SCHEMA),
        _accounts,
        (word("period", "only this period", PERIODS),),
    ),
    Resource(
        "events",
        "recent events, newest first, and the alerts that fire",
        record(**ENVELOPE, events=events.EVENTS_SCHEMA, alerts=events.ALERTS),
        _events,
        (
            whole("limit", "number of events at most", 1, events.MOST),
            event_type("type", "only events of this type or group of types"),
            text("user", "only events of this user"),
            moment("since", "only newer events: an age such as 24h, or a date"),
        ),
    ),
)
