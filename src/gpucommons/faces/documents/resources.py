"""Every resource of the API that is a function of one view: its path, parameters, shape and how it is made. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpucommons.faces.documents import accounts, allocations, events, gpus, node, turns, who
from gpucommons.faces.documents.parameters import Parameter, Value, text, whole, word
from gpucommons.faces.documents.schema import Schema, by_key, or_null, record
from gpucommons.faces.documents.values import Json
from gpucommons.faces.documents.view import ENVELOPE, View
from gpucommons.model.accounts import PERIODS

_GPU = text("gpu", "only this GPU: its index or UUID")


@dataclass(frozen=True, slots=True)
class Resource:
    name: str
    summary: str
    schema: Schema
    make: Callable[[View, Mapping[str, Value]], Json]
    parameters: tuple[Parameter, ...] = ()


def snapshot(view: View) -> dict[str, Json]:
    """Everything at once: what the stream begins with and its deltas are applied to."""
    now = view.snapshot
    return {
        **view.envelope(),
        "node": node.node(now),
        "gpus": gpus.gpus(now),
        "who": who.who(now)["who"],
        "turns": turns.turns(now, view.timeline),
        "accounts": accounts.accounts(now),
        "events": events.events(now),
        "alerts": events.alerts(now),
    }


SNAPSHOT = record(
    **ENVELOPE,
    node=node.SCHEMA,
    gpus=gpus.SCHEMA,
    who=who.SCHEMA,
    turns=turns.SCHEMA,
    accounts=accounts.SCHEMA,
    events=events.SCHEMA,
    alerts=events.ALERTS,
)


def _gpus(view: View, asked: Mapping[str, Value]) -> Json:
    return {**view.envelope(), "gpus": gpus.gpus(view.snapshot, _uuid(view, asked))}


def _who(view: View, asked: Mapping[str, Value]) -> Json:
    chosen = who.WhoFilter(_uuid(view, asked), _text(asked, "owner"), _text(asked, "user"))
    return {**view.envelope(), **who.who(view.snapshot, chosen, _text(asked, "by"))}


def _allocations(view: View, asked: Mapping[str, Value]) -> Json:
    return {**view.envelope(), "allocations": allocations.allocations(view.snapshot, _text(asked, "user"))}


def _turns(view: View, asked: Mapping[str, Value]) -> Json:
    return {**view.envelope(), "turns": turns.turns(view.snapshot, view.timeline, _uuid(view, asked))}


def _accounts(view: View, asked: Mapping[str, Value]) -> Json:
    return {**view.envelope(), "accounts": accounts.accounts(view.snapshot, _text(asked, "period"))}


def _events(view: View, asked: Mapping[str, Value]) -> Json:
    found = events.events(view.snapshot, int(asked.get("limit", events.SHOWN)), _text(asked, "type"))
    return {**view.envelope(), "events": found, "alerts": events.alerts(view.snapshot)}


def _text(asked: Mapping[str, Value], name: str) -> str | None:
    return None if name not in asked else str(asked[name])


def _uuid(view: View, asked: Mapping[str, Value]) -> str | None:
    return view.gpu_uuid(str(asked["gpu"])) if "gpu" in asked else None


RESOURCES: tuple[Resource, ...] = (
    Resource("snapshot", "everything that is known now", SNAPSHOT, lambda view, _: snapshot(view)),
    Resource("gpus", "the GPUs and what they do", record(**ENVELOPE, gpus=gpus.SCHEMA), _gpus, (_GPU,)),
    Resource(
        "who",
        "who uses what of each GPU, and what has no owner",
        record(**ENVELOPE, who=who.SCHEMA, groups=or_null(by_key(who.GROUP, "identity"))),
        _who,
        (
            _GPU,
            text("owner", "only this owner: kind/id"),
            text("user", "only this account, user, uid or owner"),
            word("by", "fold the processes by this as well", who.GROUPINGS),
        ),
    ),
    Resource(
        "allocations",
        "which owner holds which slot",
        record(**ENVELOPE, allocations=allocations.SCHEMA),
        _allocations,
        (text("user", "only what is billed to this user or pod"),),
    ),
    Resource("turns", "whose turn it is on each shared GPU", record(**ENVELOPE, turns=turns.SCHEMA), _turns, (_GPU,)),
    Resource(
        "accounts",
        "GPU-hours and energy by user",
        record(**ENVELOPE, accounts=accounts.SCHEMA),
        _accounts,
        (word("period", "only this period", PERIODS),),
    ),
    Resource(
        "events",
        "what happened, newest first, and the alerts that fire",
        record(**ENVELOPE, events=events.SCHEMA, alerts=events.ALERTS),
        _events,
        (
            whole("limit", "at most so many", 1, events.MOST),
            text("type", "only events of this type or group of types", 64),
        ),
    ),
)
