"""The health of each service of the stack, and whether it has loaded its new configuration.

A service must answer with a success that it is ready; its own metrics report the reload.
"""

import base64
import json
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# The health of each service of the stack: it must answer with a success that it is ready.
#
# An open port is not enough, nor is a response with status 500. `judge` and `judge_targets` are pure; `probe` sends the
# requests.

_TIMEOUT_S = 3.0
_MAX_BYTES = 4 * 2**20
# Prometheus and Alertmanager answer so while they read their data.
_NOT_READY = 503


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    service: str
    ok: bool
    detail: str
    # It is expected to be ready soon.
    starting: bool = False


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class AgentCredentials:
    """The authority that signed the agents' certificates, and the login that they require; empty: none."""

    ca_file: str = ""
    username: str = ""
    password: str = ""


def get(url: str, timeout_s: float = _TIMEOUT_S, credentials: AgentCredentials | None = None) -> HttpResponse | str:
    """The response, whatever its status, or the reason why there is none. Never uses a proxy."""
    credentials = credentials or AgentCredentials()
    try:
        tls = ssl.create_default_context(cafile=credentials.ca_file or None)
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))
        request = urllib.request.Request(url)
        if credentials.username:
            login = base64.b64encode(f"{credentials.username}:{credentials.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {login}")
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as response:
            return HttpResponse(response.status, response.read(_MAX_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            return HttpResponse(error.code, error.read(_MAX_BYTES))
    except urllib.error.URLError as error:
        return str(error.reason)
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__


def judge(service: str, response: HttpResponse | str) -> ServiceHealth:
    if isinstance(response, str):
        return ServiceHealth(service, False, f"does not answer: {response}")
    if response.status != 200:
        detail = f"answers HTTP {response.status}: {_first_line(response.body)}"
        return ServiceHealth(service, False, detail, starting=response.status == _NOT_READY)
    if service == "grafana" and _json(response.body).get("database") != "ok":
        return ServiceHealth(service, False, "answers, but its database is not ok")
    return ServiceHealth(service, True, "ready")


def judge_targets(response: HttpResponse | str) -> ServiceHealth:
    """Prometheus can be ready while all its targets are down: then the stack does not work."""
    if isinstance(response, str) or response.status != 200:
        return ServiceHealth("targets", False, "unknown: Prometheus does not list its targets")
    active = _active_targets(_json(response.body))
    if not active:
        # It finds them a moment after it is ready.
        return ServiceHealth("targets", False, "Prometheus has no targets", starting=True)
    down = [target for target in active if target.get("health") == "down"]
    unknown = [target for target in active if target.get("health") not in ("up", "down")]
    if down:
        worst = "; ".join(f"{_name(target)}: {target.get('lastError', '')}" for target in down[:3])
        return ServiceHealth("targets", False, f"{len(down)} of {len(active)} down: {worst}")
    if unknown:
        return ServiceHealth("targets", False, f"{len(unknown)} of {len(active)} not scraped yet", starting=True)
    return ServiceHealth("targets", True, f"all {len(active)} up")


def probe(urls: Mapping[str, str], prometheus: str, agents: AgentCredentials | None = None) -> list[ServiceHealth]:
    """`urls` by service; `prometheus` is HOST:PORT."""
    healths = [
        judge(service, get(url, credentials=agents if service == "agent" else None)) for service, url in urls.items()
    ]
    return [*healths, judge_targets(get(f"http://{prometheus}/api/v1/targets?state=active"))]


def healthy(healths: Iterable[ServiceHealth]) -> bool:
    return all(health.ok for health in healths)


def _active_targets(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    data = answer.get("data")
    targets = data.get("activeTargets") if isinstance(data, dict) else None
    return [target for target in targets if isinstance(target, dict)] if isinstance(targets, list) else []


def _name(target: Mapping[str, Any]) -> str:
    labels = target.get("labels")
    labels = labels if isinstance(labels, dict) else {}
    return f"{labels.get('job', '?')} on {labels.get('node') or labels.get('instance', '?')}"


def _first_line(body: bytes) -> str:
    return body.decode("utf-8", "replace").strip().partition("\n")[0][:200]


def _json(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


# Whether Prometheus or Alertmanager has loaded its new configuration, as its own metrics report.

_SAMPLE = re.compile(r"^(\w+) (\S+)$", re.MULTILINE)
_POLL_S = 0.1
_RELOAD_S = 15.0


@dataclass(frozen=True, slots=True)
class ReloadState:
    """The time of the last successful reload, and whether the last reload succeeded."""

    at_s: float
    ok: bool


def parse_reload_state(service: str, metrics: str) -> ReloadState | None:
    values = dict(_SAMPLE.findall(metrics))
    try:
        at = float(values[f"{service}_config_last_reload_success_timestamp_seconds"])
        ok = float(values[f"{service}_config_last_reload_successful"]) == 1
    except (KeyError, ValueError):
        return None
    return ReloadState(at, ok)


def reload_state(service: str, address: str) -> ReloadState | None:
    response = get(f"http://{address}/metrics")
    if isinstance(response, HttpResponse) and response.status == 200:
        return parse_reload_state(service, response.body.decode("utf-8", "replace"))
    return None


def wait_for_reload(service: str, address: str, before: ReloadState | None) -> bool:
    """Waits until the program has loaded the new configuration (True) or has refused it (False)."""
    deadline = time.monotonic() + _RELOAD_S
    while time.monotonic() < deadline:
        now = reload_state(service, address)
        if now is not None and not now.ok:
            return False
        if now is not None and (before is None or now.at_s > before.at_s):
            return True
        time.sleep(_POLL_S)
    return False
