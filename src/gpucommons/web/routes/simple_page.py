"""A page without scripts in the agent's style: `/plain` and `/glossary`. Its policy forbids scripts and other hosts."""

import base64
import hashlib
from collections.abc import Iterable
from html import escape

from gpucommons.web.routes.response import CLOSED_POLICY, Response

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
