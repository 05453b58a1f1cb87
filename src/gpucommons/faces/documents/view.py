"""One viewer's view: a snapshot and a timeline that hold only what the viewer may see. Pure.

`view_for` is the one place where privacy is applied; every document is made from its result.
"""

from dataclasses import dataclass, field

from gpucommons.faces.documents.parameters import BadParameter
from gpucommons.faces.documents.schema import (
    INTEGER,
    NUMBER,
    TEXT,
    Field,
    Record,
    Schema,
    describe,
    list_of,
    one_of,
    or_null,
)
from gpucommons.faces.documents.values import Json
from gpucommons.model.sharing import Timeline
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.viewer import Viewer
from gpucommons.rules.privacy import SECTIONS, Hidden, find_hidden, redact, redact_timeline

HIDDEN = Record[Hidden](
    sections=(list_of(one_of(*SECTIONS)), lambda hidden: list(hidden.sections)),
    sentence=(TEXT, lambda hidden: hidden.sentence),
)


@dataclass(frozen=True, slots=True)
class View:
    snapshot: Snapshot
    timeline: Timeline = field(default_factory=dict)
    hidden: Hidden | None = None

    def envelope(self) -> dict[str, Json]:
        """The instant that a document describes, and what it hides."""
        return _ENVELOPE.build(self)

    def gpu_uuid(self, name: str) -> str:
        """The UUID of a GPU, given its UUID or index. Raises BadParameter."""
        reading = self.snapshot.readings.gpus
        identities = () if reading is None else tuple(gpu.identity for gpu in reading.gpus)
        for identity in identities:
            if name in (identity.uuid, str(identity.index)):
                return identity.uuid
        whole = name.partition(".")[0]
        if whole != name and whole in (str(identity.index) for identity in identities):
            raise BadParameter("gpu", f"{name[:64]!r} is a part of GPU {whole}: use {whole}")
        indices = ", ".join(str(identity.index) for identity in identities) or "none"
        raise BadParameter("gpu", f"unknown GPU {name[:64]!r}; GPUs of this node: {indices}")


def view_for(viewer: Viewer, snapshot: Snapshot, timeline: Timeline) -> View:
    return View(redact(snapshot, viewer), redact_timeline(timeline, viewer), find_hidden(snapshot, viewer))


ENVELOPE_FIELDS: dict[str, Field[View]] = {
    "sequence": (
        describe(INTEGER, "number of the snapshot since the agent started"),
        lambda view: view.snapshot.sequence,
    ),
    "time_unix_s": (NUMBER, lambda view: round(view.snapshot.wall_s, 3)),
    "hostname": (TEXT, lambda view: view.snapshot.hostname),
    "simulated": (
        describe(or_null(TEXT), "the simulated scenario; null where the machine is measured"),
        lambda view: view.snapshot.scenario,
    ),
    "hidden": (
        describe(
            or_null(HIDDEN.schema),
            "the sections in which rows of other owners are hidden from this viewer; null where nothing is hidden",
        ),
        lambda view: HIDDEN.build_or_null(view.hidden),
    ),
}
_ENVELOPE = Record[View](**ENVELOPE_FIELDS)
ENVELOPE: dict[str, Schema] = {name: schema for name, (schema, _) in ENVELOPE_FIELDS.items()}
