"""What `gpucommons top` knows of one node: its latest document, its recent history, and whether it still answers."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucommons.cli.top_feed import MEMORY, RECENT_S, UTILIZATION, Feed, FeedUpdate
from gpucommons.cli.top_processes import HostUse, host_use

Document = Mapping[str, Any]
# The reading of a GPU's document that continues each series of the history.
_FIELDS = {UTILIZATION: "utilization_ratio", MEMORY: "memory_used_bytes"}


@dataclass(slots=True)
class TopNode:
    """`document` is the last one that came; `lost` is why no newer one comes, and empty while the node answers.

    `who` and `who_before` are the last two documents of /api/v1/who, from which the CPU use is known.
    """

    feed: Feed
    document: Document | None = None
    lost: str = ""
    who: Document | None = None
    who_before: Document | None = None
    _recent: dict[str, dict[str, deque[float | None]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.feed.where if self.document is None else str(self.document["hostname"])

    def apply(self, update: FeedUpdate) -> None:
        self.lost = update.lost
        if update.document is None:
            return
        self.document = update.document
        if update.recent is not None:
            self._recent = {
                series: {uuid: deque(values, RECENT_S) for uuid, values in found.items()}
                for series, found in update.recent.items()
            }
        for uuid, gpu in ((update.document["gpus"] or {}).get("by_uuid") or {}).items():
            for series, name in _FIELDS.items():
                known = self._recent.setdefault(series, {}).setdefault(uuid, deque(maxlen=RECENT_S))
                known.append(gpu[name])

    def recent(self, series: str, last_s: int = RECENT_S) -> Mapping[str, Sequence[float | None]]:
        """The last seconds of each GPU, by UUID; one value a second."""
        return {uuid: list(values)[-last_s:] for uuid, values in self._recent.get(series, {}).items()}

    def host_use(self) -> Mapping[str, HostUse]:
        return host_use(self.who_before, self.who) if self.who else {}

    async def ask_host_use(self) -> None:
        """The stream does not have it."""
        found = await self.feed.ask("who", {})
        if found is not None and (self.who is None or found["sequence"] != self.who["sequence"]):
            self.who, self.who_before = found, self.who
