"""The plain page: the paths that are served here and the state of each source. At `/plain`, and at `/` of a drop-in.

Every text from outside is escaped.
"""

from collections.abc import Callable, Iterator, Sequence
from html import escape

from gpucommons.faces.documents.node import state_of
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.source_state import SourceState
from gpucommons.web.routes.readiness import readiness_problems
from gpucommons.web.routes.request import Request
from gpucommons.web.routes.response import Response
from gpucommons.web.routes.simple_page import simple_page

_COLUMNS = ("source", "state", "last read", "took", "problem and remedy")


def plain_page(
    latest: Callable[[], Snapshot | None],
    links: Sequence[tuple[str, str]],
    stale_after_s: float,
    clock: Callable[[], float],
    request: Request,
) -> Response:
    now_s, snapshot = clock(), latest()
    return render(snapshot, links, readiness_problems(snapshot, now_s, stale_after_s), now_s)


def render(
    snapshot: Snapshot | None,
    links: Sequence[tuple[str, str]],
    problems: Sequence[str],
    now_monotonic_s: float,
) -> Response:
    """`links` are (path, summary)."""
    body = [
        "<h1>gpucommons</h1>",
        *_headline(snapshot, problems),
        "<ul>",
        *(f'<li><a href="{escape(path)}">{escape(path)}</a> {escape(summary)}</li>' for path, summary in links),
        "</ul>",
        *_sources(snapshot, now_monotonic_s),
    ]
    return simple_page("gpucommons", body)


def _headline(snapshot: Snapshot | None, problems: Sequence[str]) -> Iterator[str]:
    if snapshot is not None:
        if snapshot.scenario:
            yield (
                f'<p class="simulated">SIMULATED: scenario {escape(snapshot.scenario)}. Nothing here is measured.</p>'
            )
        yield f"<p>Node {escape(snapshot.hostname)}, snapshot {snapshot.sequence}.</p>"
    if problems:
        yield f'<p class="stale">Not ready: {escape("; ".join(problems))}.</p>'


def _sources(snapshot: Snapshot | None, now_monotonic_s: float) -> Iterator[str]:
    if snapshot is None:
        return
    yield "<h2>Sources</h2><table>"
    yield "<tr>" + "".join(f"<th>{column}</th>" for column in _COLUMNS) + "</tr>"
    for name in sorted(snapshot.sources):
        yield _row(name, snapshot.sources[name], now_monotonic_s)
    yield "</table>"


def _row(name: str, state: SourceState, now_monotonic_s: float) -> str:
    word = state_of(state, now_monotonic_s)
    last_s = state.last_success_monotonic_s
    read = "never" if last_s is None else f"{max(0.0, now_monotonic_s - last_s):.1f} s ago"
    took = "" if state.duration_s is None else f"{state.duration_s * 1000:.1f} ms"
    trouble = "" if word == "fresh" else ". ".join(text for text in (state.detail, state.remedy) if text)
    essential = " (essential)" if state.essential else ""
    return (
        f'<tr><td>{escape(name)}{essential}</td><td class="{word}">{word}</td><td>{read}</td>'
        f"<td>{took}</td><td>{escape(trouble)}</td></tr>"
    )
