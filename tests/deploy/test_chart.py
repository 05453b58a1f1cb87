"""The Helm chart as helm rendered it: current, fit for Kubernetes, and the same agent as the plain manifests."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from deploy.test_kubernetes import PATCH, SHARES_PATCH, VERSIONS, named, rights
from deploy.test_kubernetes import documents as manifests
from gpucommons.config.load import load
from yaml_text import yaml_documents, yaml_of

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests" / "deploy"
CHART = ROOT / "deploy" / "helm" / "gpucommons"
# What helm made of the chart, and the setting that it was given.
RENDERED = {
    "chart.yaml": "podMonitor.enabled=true",
    "chart-sharing.yaml": "sharing.enabled=true",
    "chart-shares.yaml": "shares.perGpu=10,shares.nvsharePerGpu=4,faults.report=taint",
}


def documents(name: str = "chart.yaml") -> list[dict[str, Any]]:
    return yaml_documents((HERE / name).read_text())


def digest() -> str:
    """As `scripts/render-chart` computes it: the list of the files' digests, digested."""
    names = sorted(str(path.relative_to(ROOT)) for path in CHART.rglob("*") if path.is_file())
    lines = [f"{hashlib.sha256((ROOT / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.mark.parametrize("name", RENDERED)
def test_what_was_rendered_is_the_chart_of_now(name: str) -> None:
    first, _, rest = (HERE / name).read_text().partition("\n")
    assert first == f"# rendered from {digest()}", "run: scripts/render-chart (needs helm)"
    helm = shutil.which("helm")
    if helm is not None:
        command = [
            helm,
            "template",
            "gpucommons",
            str(CHART),
            "--namespace",
            "monitoring",
            "--kube-version",
            VERSIONS[0],
        ]
        done = subprocess.run(
            [*command, "--set", RENDERED[name]], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout == rest


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", RENDERED)
def test_it_fits_the_schemas(name: str, version: str) -> None:
    for document in documents(name):
        if document["kind"] != "PodMonitor":
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("name", ["gpucommons-gpu", "gpucommons-cpu"])
def test_its_agent_is_that_of_the_manifests(name: str) -> None:
    (charted,) = [d for d in documents() if d["kind"] == "DaemonSet" and d["metadata"]["name"] == name]
    ours, theirs = charted["spec"]["template"]["spec"], named("DaemonSet", name)["spec"]["template"]["spec"]
    for key in ("hostPID", "affinity", "nodeSelector", "tolerations", "runtimeClassName", "priorityClassName"):
        assert ours.get(key) == theirs.get(key), key
    for key in ("args", "env", "livenessProbe", "readinessProbe", "resources", "securityContext"):
        assert ours["containers"][0][key] == theirs["containers"][0][key], key
    mounts = [{m["mountPath"] for m in spec["containers"][0]["volumeMounts"]} for spec in (ours, theirs)]
    assert mounts[0] == mounts[1]


def test_its_settings_and_rights_are_those_of_the_manifests() -> None:
    by_kind = {document["kind"]: document for document in documents()}
    data = by_kind["ConfigMap"]["data"]
    for name, key in (("gpucommons", "gpucommons.toml"), ("gpu-allocation", "gpu_allocation.txt")):
        assert data[key].split() == named("ConfigMap", name)["data"][key].split()
    assert by_kind["ClusterRole"]["rules"] == named("ClusterRole", "gpucommons")["rules"]
    assert (
        by_kind["PodMonitor"]["spec"]["podMetricsEndpoints"]
        == (named("PodMonitor", "gpucommons")["spec"]["podMetricsEndpoints"])
    )


def test_the_service_selects_agents_and_not_the_pauser() -> None:
    """The pauser's pods have no listener."""
    sets = [named("DaemonSet", f"gpucommons-{name}") for name in ("gpu", "cpu", "pauser")]
    assert_selects_agents([named("Service", "gpucommons"), *sets])
    assert_selects_agents(documents("chart-sharing.yaml"))


def assert_selects_agents(made: list[dict[str, Any]]) -> None:
    selectors = [document["spec"]["selector"].items() for document in made if document["kind"] == "Service"]
    (selector,) = (found for found in selectors if ("app.kubernetes.io/name", "gpucommons") in found)
    pods = [document["spec"]["template"]["metadata"]["labels"] for document in made if document["kind"] == "DaemonSet"]
    selected = {labels["app.kubernetes.io/component"] for labels in pods if selector <= labels.items()}
    assert selected == {"agent-gpu", "agent-cpu"}


def test_its_pauser_is_that_of_the_manifests() -> None:
    found = [document for document in documents("chart-sharing.yaml") if document["kind"] == "DaemonSet"]
    sets = {document["metadata"]["name"]: document["spec"]["template"]["spec"] for document in found}
    assert sets["gpucommons-pauser"] == named("DaemonSet", "gpucommons-pauser")["spec"]["template"]["spec"]
    (patch,) = manifests(PATCH)
    added = patch["spec"]["template"]["spec"]
    agent = sets["gpucommons-gpu"]
    (patched,) = added["containers"]
    for mount in patched["volumeMounts"]:
        # The chart leaves it out for a Kubernetes that does not know it, as that for which it was rendered.
        mount.pop("recursiveReadOnly", None)
    for key in ("env", "volumeMounts"):
        assert all(row in agent["containers"][0][key] for row in patched[key]), key
    assert all(volume in agent["volumes"] for volume in added["volumes"])
    assert "pauser" not in str(sets["gpucommons-cpu"])
    assert "pauser" not in str(documents("chart.yaml")), "it is off by default"


def test_its_shares_and_faults_are_those_of_the_manifests() -> None:
    found = documents("chart-shares.yaml")
    (agent,) = [d for d in found if d["kind"] == "DaemonSet" and d["metadata"]["name"] == "gpucommons-gpu"]
    spec = agent["spec"]["template"]["spec"]
    given = {each["name"]: each["value"] for each in spec["containers"][0]["env"] if "value" in each}
    kubernetes = load(None, given, {}).settings.kubernetes
    assert (kubernetes.shares_per_gpu, kubernetes.nvshare_shares_per_gpu, kubernetes.report_faults) == (10, 4, "taint")
    (patch,) = manifests(SHARES_PATCH)
    added = patch["spec"]["template"]["spec"]
    assert all(mount in spec["containers"][0]["volumeMounts"] for mount in added["containers"][0]["volumeMounts"])
    assert all(volume in spec["volumes"] for volume in added["volumes"])
    (role,) = [d for d in found if d["kind"] == "ClusterRole"]
    rules = {(what, verb) for rule in role["rules"] for what in rule["resources"] for verb in rule["verbs"]}
    assert rules == rights("gpucommons") | rights("gpucommons-faults") | rights("gpucommons-taints")
    plain = str(documents("chart.yaml"))
    assert "KUBERNETES_SHARES" not in plain
    assert "device-plugins" not in plain


def test_the_schema_of_the_values_knows_every_value_and_refuses_others() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml_of((CHART / "values.yaml").read_text())
    jsonschema.validate(values, schema)
    for name, value in (("sharing", {"enable": True}), ("shares", {"perGpu": -1}), ("faults", {"report": "yes"})):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({name: value}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"gpus": {"enabled": True}}, schema)
