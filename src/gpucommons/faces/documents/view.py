"""What one viewer's answers are drawn from: a snapshot that holds only what this viewer may see, and who ran when."""

from dataclasses import dataclass, field

from gpucommons.faces.documents.parameters import BadParameter
from gpucommons.faces.documents.schema import NUMBER, TEXT, Schema, described, or_null
from gpucommons.faces.documents.values import Json
from gpucommons.model.sharing import Timeline
from gpucommons.model.snapshot import Snapshot

ENVELOPE: dict[str, Schema] = {
    "sequence": described({"type": "integer"}, "counts the snapshots since the agent started"),
    "time_unix_s": NUMBER,
    "hostname": TEXT,
    "simulated": described(or_null(TEXT), "the scenario that is played; null where the machine is measured"),
}


@dataclass(frozen=True, slots=True)
class View:
    snapshot: Snapshot
    timeline: Timeline = field(default_factory=dict)

    def envelope(self) -> dict[str, Json]:
        """Which instant an answer is of."""
        return {
            "sequence": self.snapshot.sequence,
            "time_unix_s": round(self.snapshot.wall_s, 3),
            "hostname": self.snapshot.hostname,
            "simulated": self.snapshot.scenario,
        }

    def gpu_uuid(self, name: str) -> str:
        """The UUID of a GPU that was named by UUID or index. Raises BadParameter."""
        reading = self.snapshot.readings.gpus
        identities = () if reading is None else tuple(gpu.identity for gpu in reading.gpus)
        for identity in identities:
            if name in (identity.uuid, str(identity.index)):
                return identity.uuid
        there_are = ", ".join(str(identity.index) for identity in identities) or "none"
        raise BadParameter("gpu", f"no such GPU; there are: {there_are}")
