"""`/readyz`: whether the agent's readings are fresh, and if not, which are not and why. Pure but for the clock."""

from collections.abc import Callable

from gpucommons.model.snapshot import Snapshot
from gpucommons.model.source_state import SourceState
from gpucommons.web.routes.request import Request
from gpucommons.web.routes.response import Response, text


def readyz(
    latest: Callable[[], Snapshot | None], stale_after_s: float, clock: Callable[[], float], request: Request
) -> Response:
    problems = readiness_problems(latest(), clock(), stale_after_s)
    return text("".join(f"{line}\n" for line in problems), 503) if problems else text("OK")


def readiness_problems(
    snapshot: Snapshot | None, now_monotonic_s: float, snapshot_stale_after_s: float
) -> tuple[str, ...]:
    """One line for each thing that is not fresh; empty means ready."""
    if snapshot is None:
        return ("no snapshot yet",)
    found = []
    age_s = now_monotonic_s - snapshot.monotonic_s
    if age_s > snapshot_stale_after_s:
        found.append(f"snapshot: {age_s:.1f} s old, limit {snapshot_stale_after_s:g} s")
    for name in sorted(snapshot.sources):
        state = snapshot.sources[name]
        if state.essential and not state.is_fresh(now_monotonic_s):
            found.append(f"{name}: {_why(state, now_monotonic_s)}")
    return tuple(found)


def _why(state: SourceState, now_monotonic_s: float) -> str:
    last_s = state.last_success_monotonic_s
    when = "never read" if last_s is None else f"last read {now_monotonic_s - last_s:.1f} s ago"
    return f"{when}: {state.detail}" if state.detail else when
