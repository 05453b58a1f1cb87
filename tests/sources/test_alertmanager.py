"""Alerts: a real Alertmanager's, and whatever else may answer in its place."""

import json
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gpucommons.model.events import AlertsReading
from gpucommons.sources.alertmanager import MAX_ALERTS, AlertmanagerSource, parse_alerts
from gpucommons.sources.source import SourceError
from needs import needs_program
from prometheus_server import answers, free_port
from waiting import until


def alert_json(**changes: Any) -> dict[str, Any]:
    return {
        "fingerprint": "abc",
        "labels": {"alertname": "GPUHot", "severity": "critical", "gpu": "5"},
        "annotations": {"summary": "GPU 5 is hot"},
        "status": {"state": "active", "silencedBy": []},
        "startsAt": "2026-11-15T01:02:03.456Z",
        **changes,
    }


def test_an_alert_is_read() -> None:
    (alert,) = parse_alerts([alert_json()]).alerts
    assert (alert.name, alert.severity, alert.state) == ("GPUHot", "critical", "active")
    assert alert.labels == {"gpu": "5"}
    assert alert.summary == "GPU 5 is hot"
    assert alert.starts_wall_s == pytest.approx(1794704523.456)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        5,
        {},
        {"labels": {}},
        alert_json(fingerprint=None),
        alert_json(labels={"severity": "x"}),
        alert_json(labels=7),
    ],
)
def test_one_bad_alert_costs_only_itself(bad: object) -> None:
    assert [alert.name for alert in parse_alerts([bad, alert_json()]).alerts] == ["GPUHot"]


def test_strange_fields_are_left_out() -> None:
    strange = alert_json(annotations=[], status="?", startsAt="soon", labels={"alertname": "A", "n": 5})
    (alert,) = parse_alerts([strange]).alerts
    assert (alert.summary, alert.state, alert.starts_wall_s, alert.labels) == ("", "active", None, {})


def test_newest_first_and_bounded() -> None:
    many = [alert_json(fingerprint=str(n), startsAt=f"2026-11-15T01:{n // 60:02d}:{n % 60:02d}Z") for n in range(300)]
    alerts = parse_alerts(many).alerts
    assert len(alerts) == MAX_ALERTS
    assert alerts[0].fingerprint == "299"


def test_what_is_no_list_is_a_failure() -> None:
    with pytest.raises(SourceError):
        parse_alerts({"status": "success"})


def test_an_unreachable_server_is_a_failure_with_a_reason() -> None:
    with pytest.raises(SourceError) as caught:
        AlertmanagerSource("http://127.0.0.1:1").read()
    assert caught.value.reason == "unreachable"


def test_a_real_alertmanager(tmp_path: Path) -> None:
    needs_program("prometheus-alertmanager")
    config = tmp_path / "alertmanager.yml"
    config.write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    port = free_port()
    process = subprocess.Popen(
        [
            "prometheus-alertmanager",
            f"--config.file={config}",
            f"--storage.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        source = AlertmanagerSource(f"http://127.0.0.1:{port}/")
        body = json.dumps([{"labels": {"alertname": "Test", "severity": "warning"}, "annotations": {"summary": "hm"}}])
        url, kind = f"http://127.0.0.1:{port}/api/v2/alerts", {"Content-Type": "application/json"}
        until(lambda: answers(urllib.request.Request(url, body.encode(), kind)), "it takes an alert", within_s=20)
        reading = until(lambda: found if (found := source.read()).alerts else None, "the alert is read", within_s=20)
        assert isinstance(reading, AlertsReading)
        assert [(alert.name, alert.severity, alert.summary) for alert in reading.alerts] == [("Test", "warning", "hm")]
        assert reading.alerts[0].starts_wall_s == pytest.approx(time.time(), abs=60)
    finally:
        process.terminate()
        process.wait()
