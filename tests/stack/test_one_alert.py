"""One cause, one alert: a real Alertmanager mutes the alerts of the effects, and no other."""

from pathlib import Path

import pytest

from gpucommons.config.stack import StackSettings
from gpucommons.stack.prometheus import AlertmanagerSecrets, alertmanager_config
from gpucommons.stack.render import to_yaml
from prometheus_server import running_alertmanager
from stack.promql import rules
from waiting import until

_SECRETS = AlertmanagerSecrets(None, "", "", "", "")
_LABELS = {rule.name: rule.labels for rule in rules() if rule.kind == "alert"}
# Causes, and what fires with them on the same node; the GPU of each alert is the number after its name.
CAUSES = {
    "a dead node": (["GPUCommonsAgentDown", "DS01ExporterDown", "DS01DCGMExporterDown", "DS01NodeExporterDown"], 1),
    "a dead exporter": (["DS01ExporterDown", "DS01DCGMExporterDown", "DS01NodeExporterDown"], 1),
    "XID 79": (["GPUCommonsGPULost 3", "GPUCommonsXIDCritical 3", "DS01GPUXIDError 3", "GPUCommonsGPUThrottled 3"], 1),
    "a memory error": (["GPUCommonsXIDCritical 3", "DS01GPUXIDError 3"], 1),
    "a driver that does not answer": (["GPUCommonsDriverDown", "GPUCommonsGPUMissing", "GPUCommonsGPULost 3"], 1),
    "two lost GPUs": (["GPUCommonsGPULost 3", "GPUCommonsXIDCritical 3", "GPUCommonsGPULost 4"], 2),
    "a lost GPU, and one that is too hot": (["GPUCommonsGPULost 3", "DS01GPUCriticalTemperature 4"], 2),
}


def labels_of(written: str, node: str) -> dict[str, str]:
    name, _, gpu = written.partition(" ")
    own = {key: _LABELS[name][key] for key in ("severity", "topic")}
    assert bool(gpu) == ("gpu_uuid" in _LABELS[name]), f"{name} has a GPU, or it has none"
    return {"alertname": name, "node": node, **own, **({"gpu_uuid": f"GPU-{gpu}"} if gpu else {})}


def test_alertmanager_mutes_the_effects_of_a_cause_on_its_node(tmp_path: Path) -> None:
    config = to_yaml(alertmanager_config(StackSettings(), _SECRETS))
    with running_alertmanager(config, tmp_path) as server:
        sent = [labels_of(each, node) for node, (names, _) in CAUSES.items() for each in names]
        sent.append(labels_of("DS01ExporterDown", "a node with no other alert"))
        server.send(*({"labels": labels} for labels in sent))

        def active() -> dict[str, list[str]] | None:
            """The alerts of each node that are sent, once the effects are muted."""
            alerts = server.alerts()
            if len(alerts) < len(sent) or any(alert["status"]["state"] == "unprocessed" for alert in alerts):
                return None
            by_node: dict[str, list[str]] = {}
            for alert in alerts:
                if alert["status"]["state"] == "active":
                    by_node.setdefault(alert["labels"]["node"], []).append(alert["labels"]["alertname"])
            counts = {node: len(by_node.get(node, ())) for node in CAUSES}
            return by_node if counts == {node: count for node, (_, count) in CAUSES.items()} else None

        shown = until(active, "one alert for each cause", within_s=30)
    assert shown["a node with no other alert"] == ["DS01ExporterDown"], "effects are muted on the same node only"
    for node, (names, _) in CAUSES.items():
        assert names[0].split()[0] in shown[node], "the cause is sent"


@pytest.mark.parametrize("name", sorted({each.split()[0] for names, _ in CAUSES.values() for each in names}))
def test_the_names_above_are_those_of_rules(name: str) -> None:
    assert name in _LABELS
