"""The alerts of an Alertmanager that are about this node. Every field of its answer is checked.

One Alertmanager serves many nodes. An alert belongs to the node in its label `node`, or else to the host in its label
`instance`. One without both, such as that of a site's own rule, belongs to every node.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from ipaddress import ip_address
from typing import Literal

from gpucommons.base.http_client import get_json
from gpucommons.base.text import parse_decimal
from gpucommons.model.events import Alert, AlertsReading
from gpucommons.sources.source import SourceError

MAX_ALERTS = 200
_LONGEST_BYTES = 4 * 2**20
_LONGEST_TEXT = 500
_TIMEOUT_S = 5.0


def own_names(given: str) -> tuple[str, ...]:
    """The names of this node in its alerts: the given one alone, or its host name and its name in Kubernetes."""
    return (given,) if given else tuple(filter(None, (socket.gethostname(), os.environ.get("NODE_NAME", ""))))


def is_own_address(host: str) -> bool:
    """Whether this machine has that IP address: only its own can be bound."""
    try:
        address = ip_address(host.strip("[]"))
        with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except (OSError, ValueError):
        return False
    return True


class OwnNode:
    """Which alerts are about this node. Another spelling of a label costs a system call, once."""

    def __init__(self, names: Iterable[str], is_own_address: Callable[[str], bool] = is_own_address) -> None:
        self._short = frozenset(_short(name) for name in names)
        self._is_own_address = is_own_address
        self._addresses: dict[str, bool] = {}

    def has(self, alert: Alert) -> bool:
        node = alert.labels.get("node") or alert.labels.get("instance", "").rpartition(":")[0]
        return not node or _short(node) in self._short or self._has_address(node)

    def _has_address(self, node: str) -> bool:
        if node not in self._addresses:
            if len(self._addresses) >= MAX_ALERTS:
                self._addresses.clear()
            self._addresses[node] = self._is_own_address(node)
        return self._addresses[node]


def _short(name: str) -> str:
    """gpu1.example.org and gpu1 are one host. An address is not shortened."""
    return name.lower().partition(".")[0] if parse_decimal(name.replace(".", "")) is None else name


class AlertmanagerSource:
    name = "alertmanager"
    feeds = "alerts"
    produces = AlertsReading
    essential = False
    cadence_s = 15.0
    runs_on: Literal["thread", "loop"] = "thread"

    def __init__(self, url: str, node: OwnNode) -> None:
        self._node = node
        self._url = f"{url.rstrip('/')}/api/v2/alerts"
        self.deadline_s = 2 * _TIMEOUT_S

    def read(self) -> AlertsReading:
        return parse_alerts(
            asyncio.run(
                get_json(self._url, "Alertmanager", SourceError, timeout_s=_TIMEOUT_S, max_bytes=_LONGEST_BYTES)
            ),
            self._node.has,
        )


def parse_alerts(answer: object, is_own: Callable[[Alert], bool] = lambda _: True) -> AlertsReading:
    """A row that is not an alert is left out, and so is the alert of another node."""
    if not isinstance(answer, list):
        raise SourceError("not_alerts", "Alertmanager sent an answer that is not a list of alerts")
    alerts = (_alert(row) for row in answer if isinstance(row, dict))
    own = sorted(
        (alert for alert in alerts if alert is not None and is_own(alert)),
        key=lambda alert: -(alert.starts_wall_s or 0.0),
    )
    return AlertsReading(tuple(own[:MAX_ALERTS]))


def _alert(row: Mapping[str, object]) -> Alert | None:
    labels, annotations, status = _texts(row.get("labels")), _texts(row.get("annotations")), row.get("status")
    name = labels.pop("alertname", "")
    fingerprint = row.get("fingerprint")
    if not name or not isinstance(fingerprint, str):
        return None
    state = status.get("state") if isinstance(status, dict) else None
    return Alert(
        fingerprint=fingerprint,
        name=name,
        severity=labels.pop("severity", ""),
        state=state if isinstance(state, str) else "active",
        starts_wall_s=_wall_s(row.get("startsAt")),
        summary=annotations.get("summary") or annotations.get("description", ""),
        labels=labels,
    )


def _texts(texts: object) -> dict[str, str]:
    if not isinstance(texts, dict):
        return {}
    return {str(name): value[:_LONGEST_TEXT] for name, value in texts.items() if isinstance(value, str)}


def _wall_s(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value).timestamp()
    except ValueError:
        return None
