"""Alerts: a real Alertmanager's, and whatever else may answer in its place."""

import time
from pathlib import Path
from typing import Any

import pytest

from gpucommons.model.events import AlertsReading
from gpucommons.sources.alertmanager import (
    MAX_ALERTS,
    AlertmanagerSource,
    OwnNode,
    is_own_address,
    own_names,
    parse_alerts,
)
from gpucommons.sources.source import SourceError
from prometheus_server import running_alertmanager
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


@pytest.mark.parametrize(
    ("labels", "is_own"),
    [
        ({"node": "gpu1"}, True),
        ({"node": "GPU1.example.org"}, True),
        ({"node": "gpu2"}, False),
        ({"node": "gpu10"}, False),
        ({"instance": "gpu1:9460"}, True),
        ({"instance": "gpu2.example.org:9460"}, False),
        ({"node": "gpu2", "instance": "gpu1:9460"}, False),
        ({"node": "10.0.0.7"}, True),
        ({"node": "10.0.0.8"}, False),
        ({"instance": "10.0.0.7:9460"}, True),
        ({"team": "ml"}, True),
    ],
)
def test_an_alert_is_of_this_node_by_name_or_address(labels: dict[str, str], is_own: bool) -> None:
    node = OwnNode(["gpu1.cluster"], lambda host: host == "10.0.0.7")
    row = alert_json(labels={"alertname": "GPUHot", **labels})
    assert bool(parse_alerts([row], node.has).alerts) is is_own


def test_only_addresses_of_this_machine_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_own_address("127.0.0.1")
    assert not is_own_address("192.0.2.1"), "an address for documentation, which no machine has"
    assert not is_own_address("gpu1")
    assert own_names("lab") == ("lab",)
    monkeypatch.setenv("NODE_NAME", "worker-3")
    assert own_names("")[1:] == ("worker-3",)


def test_what_is_no_list_is_a_failure() -> None:
    with pytest.raises(SourceError):
        parse_alerts({"status": "success"})


def test_an_unreachable_server_is_a_failure_with_a_reason() -> None:
    with pytest.raises(SourceError) as caught:
        AlertmanagerSource("http://127.0.0.1:1", OwnNode(["gpu1"])).read()
    assert caught.value.reason == "unreachable"


def test_a_real_alertmanager(tmp_path: Path) -> None:
    with running_alertmanager("route: {receiver: none}\nreceivers: [{name: none}]\n", tmp_path) as server:
        source = AlertmanagerSource(server.url, OwnNode(["gpu1"]))
        labels = {"alertname": "Test", "severity": "warning"}
        server.send(
            {"labels": {**labels, "node": "gpu1"}, "annotations": {"summary": "hm"}},
            {"labels": {**labels, "node": "gpu2"}, "annotations": {"summary": "of another node"}},
        )
        reading = until(lambda: found if (found := source.read()).alerts else None, "the alert is read", within_s=20)
        assert isinstance(reading, AlertsReading)
        assert [(alert.name, alert.severity, alert.summary) for alert in reading.alerts] == [("Test", "warning", "hm")]
        assert reading.alerts[0].starts_wall_s == pytest.approx(time.time(), abs=60)
