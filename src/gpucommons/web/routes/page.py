"""The plain page at `/`: what is served here and how each source is doing. Pure: a snapshot in, HTML out.

Every text from outside is escaped; the page has no script, and its policy would let none run.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from html import escape

from gpucommons.model.snapshot import Snapshot
from gpucommons.model.source_state import SourceState
from gpucommons.web.routes.response import CLOSED_POLICY, Response

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem;
       color: #1b1f24; background: #fff; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; }
th, td { border-bottom: 1px solid #d0d7de; }
.simulated { background: #fff3cd; color: #533f03; padding: .6rem 1rem; font-weight: 600; }
.fresh { color: #116329; } .stale, .failing { color: #a40e26; font-weight: 600; } .absent { color: #57606a; }
@media (prefers-color-scheme: dark) {
  body { color: #e6edf3; background: #0d1117; } a { color: #6cb6ff; } th, td { border-color: #30363d; }
  .fresh { color: #56d364; } .stale, .failing { color: #ff7b72; } .absent { color: #8b949e; }
}
"""
_COLUMNS = ("source", "state", "last read", "took", "what is wrong, what to do")
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {"Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; {CLOSED_POLICY}"}


def render(
    snapshot: Snapshot | None,
    links: Sequence[tuple[str, str]],
    complaints: Sequence[str],
    now_monotonic_s: float,
) -> Response:
    """`links` are (path, what is there)."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>gpucommons</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body>",
        "<h1>gpucommons</h1>",
        *_headline(snapshot, complaints),
        "<ul>",
        *(f'<li><a href="{escape(path)}">{escape(path)}</a> {escape(what)}</li>' for path, what in links),
        "</ul>",
        *_sources(snapshot, now_monotonic_s),
        "</body></html>",
    ]
    return Response("\n".join(parts).encode(errors="replace"), "text/html; charset=utf-8", headers=_HEADERS)


def _headline(snapshot: Snapshot | None, complaints: Sequence[str]) -> Iterator[str]:
    if snapshot is not None:
        if snapshot.scenario:
            yield (
                f'<p class="simulated">SIMULATED: scenario {escape(snapshot.scenario)}. Nothing here was measured.</p>'
            )
        yield f"<p>Node {escape(snapshot.hostname)}, snapshot {snapshot.sequence}.</p>"
    if complaints:
        yield f'<p class="stale">Not ready: {escape("; ".join(complaints))}.</p>'


def _sources(snapshot: Snapshot | None, now_monotonic_s: float) -> Iterator[str]:
    if snapshot is None:
        return
    yield "<h2>Sources</h2><table>"
    yield "<tr>" + "".join(f"<th>{column}</th>" for column in _COLUMNS) + "</tr>"
    for name in sorted(snapshot.sources):
        yield _row(name, snapshot.sources[name], now_monotonic_s)
    yield "</table>"


def _row(name: str, state: SourceState, now_monotonic_s: float) -> str:
    word = _word(state, now_monotonic_s)
    last_s = state.last_success_monotonic_s
    read = "never" if last_s is None else f"{max(0.0, now_monotonic_s - last_s):.1f} s ago"
    took = "" if state.duration_s is None else f"{state.duration_s * 1000:.1f} ms"
    trouble = "" if word == "fresh" else ". ".join(text for text in (state.detail, state.remedy) if text)
    essential = " (essential)" if state.essential else ""
    return (
        f'<tr><td>{escape(name)}{essential}</td><td class="{word}">{word}</td><td>{read}</td>'
        f"<td>{took}</td><td>{escape(trouble)}</td></tr>"
    )


def _word(state: SourceState, now_monotonic_s: float) -> str:
    if state.is_fresh(now_monotonic_s):
        return "fresh"
    if state.absent:
        return "absent"
    return "stale" if state.up else "failing"
