"""One viewer's view: a snapshot and a timeline that hold only what the viewer may see. Pure.

`view_for` is the one place where privacy is applied; every document is made from its result.
"""

from dataclasses import dataclass, field

from gpucommons.faces.documents.parameters import BadParameter
from gpucommons.faces.documents.schema import NUMBER, TEXT, Record, Schema, described, listed, one_of, or_null
from gpucommons.faces.documents.values import Json
from gpucommons.model.sharing import Timeline
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.privacy import SECTIONS, Hidden, Viewer, hidden_from, seen_by, timeline_seen_by

_HIDDEN = Record[Hidden](
    sections=(listed(one_of(*SECTIONS)), lambda hidden: list(hidden.sections)),
    sentence=(TEXT, lambda hidden: hidden.sentence),
)
ENVELOPE: dict[str, Schema] = {
    "sequence": described({"type": "integer"}, "number of the snapshot since the agent started"),
    "time_unix_s": NUMBER,
    "hostname": TEXT,
    "simulated": described(or_null(TEXT), "the simulated scenario; null where the machine is measured"),
    "hidden": described(
        or_null(_HIDDEN.schema),
        "the sections in which rows of other owners are hidden from this viewer; null where nothing is hidden",
    ),
}


@dataclass(frozen=True, slots=True)
class View:
    snapshot: Snapshot
    timeline: Timeline = field(default_factory=dict)
    hidden: Hidden | None = None

    def envelope(self) -> dict[str, Json]:
        """The instant that a document describes, and what it hides."""
        return {
            "sequence": self.snapshot.sequence,
            "time_unix_s": round(self.snapshot.wall_s, 3),
            "hostname": self.snapshot.hostname,
            "simulated": self.snapshot.scenario,
            "hidden": _HIDDEN.build_or_null(self.hidden),
        }

    def gpu_uuid(self, name: str) -> str:
        """The UUID of a GPU, given its UUID or index. Raises BadParameter."""
        reading = self.snapshot.readings.gpus
        identities = () if reading is None else tuple(gpu.identity for gpu in reading.gpus)
        for identity in identities:
            if name in (identity.uuid, str(identity.index)):
                return identity.uuid
        known = ", ".join(str(identity.index) for identity in identities) or "none"
        raise BadParameter("gpu", f"unknown GPU {name[:64]!r}; GPUs of this node: {known}")


def view_for(viewer: Viewer, snapshot: Snapshot, timeline: Timeline) -> View:
    return View(seen_by(snapshot, viewer), timeline_seen_by(timeline, viewer), hidden_from(snapshot, viewer))
