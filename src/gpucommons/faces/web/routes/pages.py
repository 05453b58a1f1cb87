"""The pages without scripts: `/plain` with the state of each source, `/glossary`, and the answer of `/readyz`.

Their policy forbids scripts and other hosts, so that they work in any browser and through any proxy.
"""

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from gpucommons.base.text import escape
from gpucommons.faces.documents.node import state_of
from gpucommons.faces.web.routes.request import CLOSED_POLICY, Request, Response, text
from gpucommons.model.problems import ProblemKind
from gpucommons.model.snapshot import Snapshot, SourceState
from gpucommons.rules.problems import own_problems

# A page without scripts in the agent's style: `/plain` and `/glossary`. Its policy forbids scripts and other hosts.

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem;
       color: #1b1f24; background: #fff; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; }
th, td { border-bottom: 1px solid #d0d7de; }
dt { font-weight: 600; margin-top: .7rem; } dd { margin: 0; }
:target { background: #fff3cd; }
.simulated { background: #fff3cd; color: #533f03; padding: .6rem 1rem; font-weight: 600; }
.fresh { color: #116329; } .stale, .failing { color: #a40e26; font-weight: 600; } .absent { color: #57606a; }
@media (prefers-color-scheme: dark) {
  body { color: #e6edf3; background: #0d1117; } a { color: #6cb6ff; } th, td { border-color: #30363d; }
  .fresh { color: #56d364; } .stale, .failing { color: #ff7b72; } .absent { color: #8b949e; }
  :target { background: #3a2f10; }
}
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {"Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; {CLOSED_POLICY}"}


def simple_page(title: str, body: Iterable[str]) -> Response:
    """`body` is markup; every text from outside is escaped in it."""
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body><main>",
        *body,
        "</main></body></html>",
    ]
    return Response("\n".join(parts).encode(errors="replace"), "text/html; charset=utf-8", headers=_HEADERS)


# `/readyz`: whether the agent's readings are fresh, and if not, which are not and why. Pure but for the clock.


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
    problems = []
    age_s = now_monotonic_s - snapshot.monotonic_s
    if age_s > snapshot_stale_after_s:
        problems.append(f"snapshot: {age_s:.1f} s old, limit {snapshot_stale_after_s:g} s")
    for name in sorted(snapshot.sources):
        state = snapshot.sources[name]
        if state.essential and not state.is_fresh(now_monotonic_s):
            problems.append(f"{name}: {_why(state, now_monotonic_s)}")
    problems += (problem.sentence for problem in own_problems(snapshot) if problem.kind is ProblemKind.DRIVER)
    return tuple(problems)


def _why(state: SourceState, now_monotonic_s: float) -> str:
    last_s = state.last_success_monotonic_s
    when = "never read" if last_s is None else f"last read {now_monotonic_s - last_s:.1f} s ago"
    return f"{when}: {state.detail}" if state.detail else when


# The plain page: the paths that are served here and the state of each source. At `/plain`, and at `/` of a drop-in.
#
# Every text from outside is escaped.

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


# The words of the page, the commands and the accounts, explained once: at `/glossary`, and as docs/glossary.md.

GLOSSARY: tuple[tuple[str, str], ...] = (
    ("slot", "What can be held: a whole GPU (1), or one MIG device of it (1.0 is the first of GPU 1)."),
    ("owner", "The user, pod, job, unit or label that a process belongs to. Its use of a GPU is attributed to it."),
    (
        "held",
        "A container, pod, job or process has the slot: it runs there, it was allocated the slot and runs, or it is "
        "stopped while DS01 reserves the slot for it.",
    ),
    (
        "active",
        "Held, and its processes used at least 5 % ([ledger] active_ratio) of the part of the slot that it holds.",
    ),
    ("idle", "Held, and known not to be active."),
    ("unjudged", "Held, and it is unknown whether it was active."),
    ("managed", "DS01, Kubernetes, Slurm or a lease allocated the slot. A bare process holds a slot unmanaged."),
    ("free", "No workload holds the slot."),
    ("held idle", "A workload holds the slot and does not use it now."),
    ("busy", "A workload holds the slot and uses it, or it is unknown whether it does."),
    ("reserved", "A reservation is in force, and no workload holds the slot."),
    ("lost", "The GPU no longer answers."),
    (
        "unattributed",
        "Use of a GPU that has no owner, with the reason: memory of the driver, a process that has ended.",
    ),
    ("GPU-hour", "One slot held for one hour. Two owners of one slot are billed a half each."),
    (
        "efficiency",
        "In a report: SM time used over time held, at most 100 %. A dashboard has active time over time held.",
    ),
    ("lease", "One command has slots for as long as it runs; gpucommons run gets it."),
    ("trespasser", "A process on an exclusively leased slot that is not part of the lease."),
    (
        "MPS",
        "NVIDIA's Multi-Process Service: commands that share a GPU run on it at the same time, each with limits of "
        "memory and threads ([leases] mps).",
    ),
    ("turn", "The time in which a program may use a GPU that it shares with others."),
    ("quota", "What an operator sets: the share of the GPU's time, the memory, the GPUs or GPU-hours of an owner."),
    ("debt", "The time that a program ran beyond its quota. It waits until the debt is paid."),
    ("paused", "A program's GPU work is stopped until its next turn. It keeps its GPU memory."),
    ("parked", "A paused program whose GPU memory is in host memory."),
    ("problem", "What the agent judges to be wrong now, with what to do."),
    ("headroom", "What is left of CPU and memory: 10 is idle, 0 is used up."),
)


def anchor(word: str) -> str:
    return word.lower().replace(" ", "-")


def glossary_page(request: Request) -> Response:
    rows = (f'<dt id="{anchor(word)}">{escape(word)}</dt><dd>{escape(meaning)}</dd>' for word, meaning in GLOSSARY)
    return simple_page(
        "gpucommons: glossary", ["<h1>Glossary</h1>", "<dl>", *rows, "</dl>", '<p><a href="/">the page</a></p>']
    )


def glossary_document() -> str:
    """The same as docs/glossary.md."""
    rows = "".join(f'| <a id="{anchor(word)}"></a>{word} | {meaning} |\n' for word, meaning in GLOSSARY)
    head = "# Glossary\n\nGenerated by `make docs`; the agent serves it at `/glossary`.\n\n"
    return f"{head}| word | meaning |\n|---|---|\n{rows}"
