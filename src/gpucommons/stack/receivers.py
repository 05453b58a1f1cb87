"""Tries the receivers of alerts: email, webhook, Slack or Mattermost, and Teams.

The running Alertmanager sends a test alert, as it would send a real one: with its templates, secrets and network. Its
own counters report each try. `requests_in`, `verdicts` and `reason_in` are pure.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from gpucommons.base.http_client import post_json
from gpucommons.config.stack import StackSettings
from gpucommons.stack.check import StackError
from gpucommons.stack.health import HttpResponse, get

_WITHIN_S: Final = 30.0
_POLL_S: Final = 0.2
_TIMEOUT_S: Final = 5.0
# The alert ends by itself; a message that it is resolved follows within two minutes.
_ALERT_LASTS_S: Final = 60.0
_LOG_BYTES: Final = 64 * 1024
_COUNTER = re.compile(r'^alertmanager_notification_requests_(failed_)?total\{.*?integration="(\w+)".*?\} (\S+)$')
_REASON = re.compile(r'\berr="((?:[^"\\]|\\.)*)"')
_URL = re.compile(r"https?://[^\s\"]+")
_LONGEST_REASON: Final = 300


class Tries(NamedTuple):
    """How often Alertmanager has tried to send, and how many of these tries failed, by integration."""

    total: Counter[str]
    failed: Counter[str]


def integrations(settings: StackSettings) -> dict[str, int]:
    """The receivers that are set, by Alertmanager's name of their kind, and how many messages each kind sends."""
    emails = [address for address in settings.email_to.split(",") if address.strip()]
    counts = {
        "email": len(emails) if settings.smtp_smarthost else 0,
        "webhook": int(bool(settings.webhook_url_file)),
        "slack": int(bool(settings.slack_webhook_url_file)),
        "msteamsv2": int(bool(settings.teams_webhook_url_file)),
    }
    return {name: count for name, count in counts.items() if count}


def try_receivers(settings: StackSettings, node: str, log: Path) -> Iterator[tuple[str, str | None]]:
    """Each receiver as soon as its verdict is known: its name, and why it failed; None: it was delivered.

    `log` is that of Alertmanager where this machine has it. Raises StackError if no Alertmanager answers.
    """
    expected = integrations(settings)
    address = settings.alertmanager_listen
    begins = log.stat().st_size if log.is_file() else 0
    before = _tries(address)
    asyncio.run(_send_alert(address, node))
    deadline_s = time.monotonic() + _WITHIN_S
    while expected:
        ended = verdicts(expected, before, _tries(address))
        for name, delivered in ended.items():
            del expected[name]
            yield name, None if delivered else _reason(log, begins, name)
        if expected and time.monotonic() > deadline_s:
            break
        time.sleep(_POLL_S)
    for name in expected:
        yield name, f"not sent by Alertmanager within {_WITHIN_S:.0f} s; if it is new, run: gpucommons stack reload"


def requests_in(metrics: str) -> Tries:
    """From Alertmanager's own metrics; newer releases have more labels, whose series are added up."""
    tries = Tries(Counter(), Counter())
    for line in metrics.splitlines():
        if counted := _COUNTER.match(line):
            (tries.failed if counted[1] else tries.total)[counted[2]] += int(float(counted[3]))
    return tries


def verdicts(expected: Mapping[str, int], before: Tries, now: Tries) -> dict[str, bool]:
    """The receivers whose tries have ended, and whether all of them were delivered. A failed try is repeated: one is
    enough to know."""
    ended = {}
    for name, messages in expected.items():
        failed = now.failed[name] - before.failed[name]
        if failed > 0 or now.total[name] - before.total[name] >= messages:
            ended[name] = failed <= 0
    return ended


def reason_in(log: str, name: str) -> str | None:
    """The last error of a receiver in Alertmanager's log, without URLs: they are secrets."""
    for line in reversed(log.splitlines()):
        if f"{name}[" in line and (match := _REASON.search(line)):
            text = match[1].replace('\\"', '"').replace("\\n", " ").replace("\\\\", "\\")
            return _URL.sub("<URL>", text.rpartition(" attempts: ")[2])[:_LONGEST_REASON]
    return None


def _tries(address: str) -> Tries:
    """Raises StackError."""
    answer = get(f"http://{address}/metrics", _TIMEOUT_S)
    if not isinstance(answer, HttpResponse) or answer.status != 200:
        why = answer if isinstance(answer, str) else f"HTTP {answer.status}"
        raise StackError(f"Alertmanager does not answer on {address}: {why}; start it with: gpucommons stack start")
    return requests_in(answer.body.decode("utf-8", "replace"))


async def _send_alert(address: str, node: str) -> None:
    """Alertmanager sends the first alert of a group at once. The time makes each test a group of its own."""
    now = datetime.now(UTC)
    alert = {
        "labels": {"alertname": "GPUCommonsTest", "severity": "critical", "node": f"{node} at {now:%H:%M:%S.%f}"},
        "annotations": {
            "summary": f"Test message of gpucommons on {node}",
            "description": "Alerts of the GPUs will arrive here. There is nothing to do.",
        },
        "startsAt": now.isoformat(),
        "endsAt": (now + timedelta(seconds=_ALERT_LASTS_S)).isoformat(),
    }

    def failure(reason: str, detail: str) -> Exception:
        return StackError(detail)

    await post_json(f"http://{address}/api/v2/alerts", [alert], "Alertmanager", failure, timeout_s=_TIMEOUT_S)


def _reason(log: Path, begins: int, name: str) -> str:
    """Of the local engine, whose log is here. The line is written when all receivers have been tried."""
    see = "see: gpucommons stack logs alertmanager"
    if not log.is_file():
        return f"Alertmanager could not send it; {see}"
    deadline_s = time.monotonic() + 2.0
    while time.monotonic() < deadline_s:
        with log.open("rb") as file:
            file.seek(max(begins, log.stat().st_size - _LOG_BYTES))
            if reason := reason_in(file.read().decode("utf-8", "replace"), name):
                return reason
        time.sleep(_POLL_S)
    return f"Alertmanager could not send it; {see}"
