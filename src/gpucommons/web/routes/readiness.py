"""Whether the agent's picture of the node is worth trusting now, and if not, why. Pure."""

from gpucommons.model.snapshot import Snapshot
from gpucommons.model.source_state import SourceState


def complaints(snapshot: Snapshot | None, now_monotonic_s: float, snapshot_stale_after_s: float) -> tuple[str, ...]:
    """What is not fresh, one line each; nothing means ready."""
    if snapshot is None:
        return ("no snapshot yet",)
    found = []
    age_s = now_monotonic_s - snapshot.monotonic_s
    if age_s > snapshot_stale_after_s:
        found.append(f"snapshot: {age_s:.1f} s old, want at most {snapshot_stale_after_s:g} s")
    for name in sorted(snapshot.sources):
        state = snapshot.sources[name]
        if state.essential and not state.is_fresh(now_monotonic_s):
            found.append(f"{name}: {_why(state, now_monotonic_s)}")
    return tuple(found)


def _why(state: SourceState, now_monotonic_s: float) -> str:
    last_s = state.last_success_monotonic_s
    when = "never read" if last_s is None else f"last read {now_monotonic_s - last_s:.1f} s ago"
    return f"{when}: {state.detail}" if state.detail else when
