"""The manifests against Kubernetes' own schemas, and against what the agent needs and must not have."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from gpucommons.base.address import parse_unix_address
from gpucommons.config.load import load
from gpucommons.config.runtime_directory import served_socket
from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.config.settings import Settings
from gpucommons.kubernetes.node_faults import TAINT_KEY
from gpucommons.pauser.places import ALIVE, SERVICE_RECORD, SERVICE_SOCKET
from yaml_text import yaml_documents, yaml_of

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PATCH = DEPLOY / "kubernetes" / "sharing" / "agent-patch.yaml"
SHARES_PATCH = DEPLOY / "kubernetes" / "shares" / "agent-patch.yaml"
FAULTS_PATCH = DEPLOY / "kubernetes" / "faults" / "agent-patch.yaml"
# As tests/pauser/test_hang.py tries it.
PROBE = f"test -n \"$(find {SERVICE_SOCKET.with_name(ALIVE)} -newermt '-3 seconds')\""
FILES = sorted(set((DEPLOY / "kubernetes").rglob("*.yaml")) - {PATCH, SHARES_PATCH, FAULTS_PATCH})
VERSIONS = ("1.28", "1.31", "1.34")


def documents(file: Path) -> Iterator[dict[str, Any]]:
    yield from yaml_documents(file.read_text())


def everything() -> list[dict[str, Any]]:
    return [document for file in FILES for document in documents(file)]


def named(kind: str, name: str) -> dict[str, Any]:
    (found,) = [d for d in everything() if d["kind"] == kind and d["metadata"]["name"] == name]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_manifest_fits_the_schema(file: Path, version: str) -> None:
    for document in documents(file):
        if document["apiVersion"].startswith("monitoring.coreos.com/"):
            continue  # not Kubernetes' own: the next test looks at it
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schema_does_judge() -> None:
    broken = named("DaemonSet", "gpucommons-gpu")
    broken["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[0], strict=True)


def test_the_pod_monitor_selects_the_agents_by_a_port_that_they_have() -> None:
    monitor = named("PodMonitor", "gpucommons")
    selector = monitor["spec"]["selector"]["matchLabels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
    for name in ("gpucommons-gpu", "gpucommons-cpu"):
        template = named("DaemonSet", name)["spec"]["template"]
        assert selector <= template["metadata"]["labels"].items()
        assert endpoint["port"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}


def test_the_directories_of_its_sockets_are_the_hosts() -> None:
    spec = named("DaemonSet", "gpucommons-gpu")["spec"]["template"]["spec"]
    host = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    mounts = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    scheduler = load(None, {}, {}).settings.scheduler
    api_socket = parse_unix_address(served_socket("auto", {}, uid=0)).path
    for socket in (scheduler.socket, scheduler.xpushare_socket, api_socket):
        directory = str(Path(socket).parent)
        assert host[mounts[directory]["name"]] == directory
        assert not mounts[directory].get("readOnly")


@pytest.mark.parametrize("name", ["gpucommons-gpu", "gpucommons-cpu"])
def test_an_agent_sees_the_host_and_may_do_nothing_to_it(name: str) -> None:
    pod = named("DaemonSet", name)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["hostPID"] is True
    assert "hostNetwork" not in pod
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert "privileged" not in security
    assert "NODE_NAME" in {variable["name"] for variable in container["env"]}
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_every_node_has_one_agent_and_none_has_two() -> None:
    gpu = named("DaemonSet", "gpucommons-gpu")["spec"]["template"]["spec"]
    cpu = named("DaemonSet", "gpucommons-cpu")["spec"]["template"]["spec"]
    required = cpu["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    ((term,),) = [t["matchExpressions"] for t in required["nodeSelectorTerms"]]
    assert gpu["nodeSelector"] == {term["key"]: term["values"][0]}
    assert term["operator"] == "NotIn"
    selectors = [
        named("DaemonSet", name)["spec"]["selector"]["matchLabels"] for name in ("gpucommons-gpu", "gpucommons-cpu")
    ]
    assert selectors[0] != selectors[1], "neither claims the other's pods"


def test_the_agents_rights_are_to_look_at_pods() -> None:
    assert named("ClusterRole", "gpucommons")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    ]


def test_the_agents_settings_are_good(tmp_path: Path) -> None:
    text = named("ConfigMap", "gpucommons")["data"]["gpucommons.toml"]
    file = tmp_path / "gpucommons.toml"
    file.write_text(text)
    settings = load(file, {}, {}).settings
    pod = named("DaemonSet", "gpucommons-gpu")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["containerPort"] for port in container["ports"]}
    assert int(settings.web.listen.rpartition(":")[2]) in ports
    for address in tomllib.loads(text)["listeners"].values():
        assert int(address.rpartition(":")[2]) in ports
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    allocation = named("ConfigMap", "gpu-allocation")["data"]
    assert settings.vgpu.allocation_file == f"{mounts['gpu-allocation']}/{next(iter(allocation))}"


def test_prometheus_runs_what_is_configured() -> None:
    pod = named("StatefulSet", "prometheus")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    config = yaml_of(named("ConfigMap", "prometheus")["data"]["prometheus.yml"])
    assert config["rule_files"] == [f"{mounts['rules']}/*.yml"]
    assert f"--config.file={mounts['config']}/prometheus.yml" in container["args"]
    assert "--storage.tsdb.retention.time=7d" in container["args"]


def test_the_pauser_is_root_and_shares_the_directory_of_its_socket_with_the_agent() -> None:
    pod = named("DaemonSet", "gpucommons-pauser")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["hostPID"] is True
    assert container["securityContext"]["runAsUser"] == 0
    assert container["securityContext"]["capabilities"] == {
        "drop": ["ALL"],
        "add": ["SYS_PTRACE", "DAC_OVERRIDE", "KILL"],
    }
    assert container["args"] == ["--listen", str(SERVICE_SOCKET), "--record", str(SERVICE_RECORD)]
    (volume,) = pod["volumes"]
    (mount,) = container["volumeMounts"]
    (patch,) = documents(PATCH)
    added = patch["spec"]["template"]["spec"]
    assert added["volumes"][0] == volume
    (agent,) = named("DaemonSet", "gpucommons-gpu")["spec"]["template"]["spec"]["containers"]
    (patched,) = added["containers"]
    assert (patched["name"], patched["volumeMounts"][0]) == (agent["name"], mount)
    given = {variable["name"]: variable["value"] for variable in patched["env"]}
    assert_shares_with_the_pauser(load(None, given, {}).settings.scheduler)
    assert mount["mountPath"] == str(SERVICE_SOCKET.parent)
    liveness = container["livenessProbe"]
    assert liveness["exec"]["command"] == ["sh", "-c", PROBE]
    assert container["startupProbe"]["exec"]["command"] == ["sh", "-c", PROBE]
    assert liveness["terminationGracePeriodSeconds"] == 1, "one that hangs does not react to SIGTERM"


def assert_shares_with_the_pauser(scheduler: SchedulerSettings) -> None:
    """The agent is root there, without capabilities: it needs the socket, or it would start a pauser of its own."""
    assert scheduler.share_programs == "all"
    assert scheduler.pauser_socket == str(SERVICE_SOCKET)


def patched(patch: Path) -> dict[str, Any]:
    (found,) = documents(patch)
    added: dict[str, Any] = found["spec"]["template"]["spec"]
    return added


def settings_of(patch: Path) -> Settings:
    (agent,) = patched(patch)["containers"]
    assert agent["name"] == "agent"
    return load(None, {variable["name"]: variable["value"] for variable in agent["env"]}, {}).settings


def test_the_device_plugin_has_the_kubelets_directory_and_the_cdi_files() -> None:
    settings, spec = settings_of(SHARES_PATCH), patched(SHARES_PATCH)
    assert settings.kubernetes.shares_per_gpu == 10
    host = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    assert {mounts[path]["name"]: path for path in mounts} == host
    assert not mounts[settings.path.device_plugins].get("readOnly"), "it makes its sockets there"
    for directory in settings.path.cdi.split(","):
        assert mounts[directory]["readOnly"]


def test_reports_of_faults_have_the_rights_that_they_need_and_no_more() -> None:
    assert settings_of(FAULTS_PATCH).kubernetes.report_faults == "condition"
    assert rights("gpucommons-faults") == {("nodes", "get"), ("nodes/status", "patch"), ("events", "create")}
    assert rights("gpucommons-taints") == {("nodes", "patch")}


def rights(role: str) -> set[tuple[str, str]]:
    rules = named("ClusterRole", role)["rules"]
    return {(what, verb) for rule in rules for what in rule["resources"] for verb in rule["verbs"]}


@pytest.mark.parametrize("name", ["gpucommons-gpu", "gpucommons-pauser"])
def test_the_agents_own_taint_does_not_keep_it_from_its_node(name: str) -> None:
    tolerations = named("DaemonSet", name)["spec"]["template"]["spec"]["tolerations"]
    assert {"key": TAINT_KEY, "operator": "Exists", "effect": "NoSchedule"} in tolerations


def test_compose_shares_with_the_same_pauser() -> None:
    services = yaml_of((DEPLOY / "compose.sharing.yaml").read_text())["services"]
    pauser, agent = services["pauser"], services["agent"]
    (container,) = named("DaemonSet", "gpucommons-pauser")["spec"]["template"]["spec"]["containers"]
    assert [pauser["entrypoint"], pauser["command"]] == [container["command"], container["args"]]
    assert (pauser["pid"], pauser["user"], pauser["cap_drop"]) == ("host", "0:0", ["ALL"])
    assert pauser["cap_add"] == container["securityContext"]["capabilities"]["add"]
    assert pauser["healthcheck"]["test"] == ["CMD-SHELL", PROBE.replace("$", "$$")]
    assert pauser["volumes"] == agent["volumes"] == [f"{SERVICE_SOCKET.parent}:{SERVICE_SOCKET.parent}"]
    assert_shares_with_the_pauser(load(None, agent["environment"], {}).settings.scheduler)


def test_an_agent_that_parks_sees_the_hosts_cgroups_and_cannot_write_them() -> None:
    """In a pod not where its own are: those of the host come in addition."""
    spec = patched(PATCH)
    (volume,) = (each for each in spec["volumes"] if each["name"] == "cgroups")
    assert volume["hostPath"] == {"path": "/sys/fs/cgroup", "type": "Directory"}
    (mount,) = (each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "cgroups")
    assert mount["mountPath"] == "/host/sys/fs/cgroup"
    # The hierarchies of version 1 are mounts below it.
    assert (mount["readOnly"], mount["recursiveReadOnly"]) == (True, "IfPossible")
    agent = yaml_of((DEPLOY / "compose.yaml").read_text())["services"]["agent"]
    assert agent["pid"] == "host"
    assert "/sys/fs/cgroup:/sys/fs/cgroup:ro" in agent["volumes"]


def test_kind_has_three_nodes() -> None:
    cluster = yaml_of((DEPLOY / "kind" / "cluster-3node.yaml").read_text())
    assert cluster["apiVersion"] == "kind.x-k8s.io/v1alpha4"
    assert [node["role"] for node in cluster["nodes"]] == ["control-plane", "worker", "worker"]
