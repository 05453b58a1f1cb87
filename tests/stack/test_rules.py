"""Every rule is valid, tested both ways, uses metrics that exist, and has the labels and annotations it needs."""

import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.faces.exposition.families import MetricType
from needs import needs_program
from stack.promql import RULES, Rule, metric_names, rules
from yaml_text import yaml_of

# A quarter of its time is the collection of its garbage.
SELDOM_COLLECTED = {**os.environ, "GOGC": "400"}
TESTS = Path(__file__).resolve().parent / "rules"
SEED_NINE = {
    "DS01GPUWaste": "warning",
    "DS01MIGWaste": "warning",
    "DS01GPUHighTemperature": "warning",
    "DS01GPUCriticalTemperature": "critical",
    "DS01GPUMemoryHigh": "warning",
    "DS01ContainerHighMemory": "warning",
    "DS01ExporterDown": "critical",
    "DS01DCGMExporterDown": "critical",
    "DS01DiskSpaceLow": "warning",
}
FIELD = {
    "DS01NodeExporterDown",
    "DS01GrafanaDown",
    "DS01AlertmanagerDown",
    "DS01PrometheusStorageLow",
    "DS01HighDiskUsage",
    "DS01HighSystemLoad",
    "DS01LowMemory",
    "DS01GPUXIDError",
    "DS01UserGPUWaste",
    "DS01SystemHighGPUWaste",
    "DS01LowGPUCapacity",
    "DS01CriticalGPUCapacity",
    "DS01ContainerHighCPU",
    "DS01MIGMappingMismatch",
}
# Metrics of Prometheus itself, and the recorded settings.
NOT_OF_A_DIALECT = {
    "ALERTS",
    "gpucommons:stack_retention_bytes",
    "prometheus_tsdb_storage_blocks_bytes",
    "prometheus_tsdb_wal_storage_size_bytes",
    "up",
}


def served_names() -> set[str]:
    """Every series name that a dialect can emit."""
    names = set()
    for metric in (metric for dialect in DIALECTS for metric in dialect.catalogue):
        if metric.type is MetricType.HISTOGRAM:
            names |= {f"{metric.name}_{suffix}" for suffix in ("bucket", "sum", "count")}
        else:
            names.add(metric.name)
    return names


@cache
def known_names() -> set[str]:
    return served_names() | {rule.name for rule in rules() if rule.kind == "record"} | NOT_OF_A_DIALECT


def test_promtool_accepts_the_rules() -> None:
    needs_program("promtool")
    files = [str(file) for file in sorted(RULES.glob("*.yml"))]
    done = subprocess.run(["promtool", "check", "rules", "--lint-fatal", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", sorted(TESTS.glob("*.test.yml")), ids=lambda file: file.stem)
def test_promtool_passes(file: Path) -> None:
    needs_program("promtool")
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=120, env=SELDOM_COLLECTED
    )
    assert done.returncode == 0, done.stdout + done.stderr


def expectations() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for file in TESTS.glob("*.test.yml"):
        for test in yaml_of(file.read_text())["tests"]:
            for expected in test["promql_expr_test"]:
                yield expected["expr"], expected["exp_samples"]


def is_about(expression: str, rule: Rule) -> bool:
    if rule.kind == "record":
        return expression == rule.name
    return f'alertname="{rule.name}"' in expression


def test_each_rule_is_tested_both_ways() -> None:
    expected = list(expectations())
    for rule in rules():
        found = [samples for expression, samples in expected if is_about(expression, rule)]
        assert any(found), f"no case in which {rule.name} has a result"
        assert not all(found), f"no case in which {rule.name} stays silent"
        if rule.kind == "alert":
            assert all('alertstate="firing"' in sample["labels"] for samples in found for sample in samples)


def test_rules_use_only_served_metrics() -> None:
    known = known_names()
    unknown = {rule.name: missing for rule in rules() if (missing := metric_names(rule.expr) - known)}
    assert unknown == {}


def test_the_names_that_no_dialect_serves_are_all_used() -> None:
    used = {name for rule in rules() for name in metric_names(rule.expr)} | {"ALERTS"}
    assert used >= NOT_OF_A_DIALECT


def test_ds01s_alerts_exist() -> None:
    alerts = {rule.name: rule.labels["severity"] for rule in rules() if rule.kind == "alert"}
    assert SEED_NINE.items() <= alerts.items()
    assert set(alerts) >= FIELD
    assert alerts["DS01GPUXIDError"] == "critical"
    assert alerts["DS01LowGPUCapacity"] == alerts["DS01ContainerHighCPU"] == "info"


def test_an_alert_has_severity_topic_summary_and_description() -> None:
    for rule in (rule for rule in rules() if rule.kind == "alert"):
        assert rule.labels["severity"] in ("critical", "warning", "info")
        assert rule.labels["topic"]
        assert set(rule.annotations) == {"summary", "description"}
        assert "\n" not in rule.annotations["summary"]


def test_labels_in_annotations_exist_when_the_alert_fires() -> None:
    """A template with a label that the alert lacks renders an empty string."""
    fired: dict[str, str] = {}
    for _, samples in expectations():
        for sample in samples:
            if name := re.search(r'alertname="(\w+)"', sample["labels"]):
                fired[name.group(1)] = sample["labels"]
    for rule in (rule for rule in rules() if rule.kind == "alert"):
        texts = " ".join([*rule.annotations.values(), *rule.labels.values()])
        for label in re.findall(r"\$labels\.(\w+)", texts):
            assert f'{label}="' in fired[rule.name], f"{rule.name} has no label {label}"


def test_one_name_is_one_rule() -> None:
    names = [rule.name for rule in rules()]
    assert len(names) == len(set(names))
