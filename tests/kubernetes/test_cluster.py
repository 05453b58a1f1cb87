"""The agent against a real Kubernetes: API server with RBAC, scheduler, kubelet and containerd, real pods.

`make test-kubernetes` builds and starts the cluster (scripts/kubernetes-testbed) and names it in TEST_KUBERNETES. The
GPUs are those of the fake driver; everything else is real, with the manifests' service account and rights.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.gpu.account import Activity, Phase
from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml, process
from fakes.shared_gpu import MATMUL, SharedGpu, SharedProgram, built
from gpucommons.pauser.backend import State
from open_folder import open_folder
from running import RunningAgent, command, running_agent
from shared_node import device_files
from waiting import until

TESTBED = os.environ.get("TEST_KUBERNETES", "")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not TESTBED, reason="no cluster: TEST_KUBERNETES is not set (make test-kubernetes)"),
]
ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "deploy" / "kubernetes"
MANIFEST_FILES = ("config.yaml", "daemonset.yaml", "service.yaml")
HOST_DIRECTORIES = [
    Path("/var/lib/gpucommons"),
    *(Path("/run", name) for name in ("gpucommons", "gpucommons-pauser", "nvshare", "xpushare")),
]
SHARE, NVSHARE = "gpucommons.io/gpu", "nvshare.com/gpu"
PER_GPU, NVSHARE_PER_GPU = 4, 2


def kubectl(*arguments: str, given: str = "", within_s: float = 60) -> str:
    done = subprocess.run(
        [f"{TESTBED}/bin/kubectl", "--kubeconfig", f"{TESTBED}/run/admin.conf", *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=within_s,
    )
    assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def found(*arguments: str) -> Any:
    return json.loads(kubectl("get", *arguments, "-o", "json"))


def node() -> Any:
    return found("node", "node1")


def allocatable(resource: str) -> int:
    return int(node()["status"]["allocatable"].get(resource, 0))


def condition() -> Any:
    return next((each for each in node()["status"]["conditions"] if each["type"] == "GPUProblem"), None)


def taints() -> list[str]:
    return [each["key"] for each in node()["spec"].get("taints", [])]


def run_pod(name: str, resource: str, count: int, **metadata: Any) -> None:
    """A pod that the scheduler places; its log is its environment, and as `devices` the names in /dev."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {
            "hostNetwork": True,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": "localhost/busybox:1",
                    "command": ["/bin/sh", "-c", "env; echo devices=$(ls /dev); exec sleep 100000"],
                    "resources": {"limits": {resource: count}},
                }
            ],
        },
    }
    kubectl("apply", "-f", "-", given=json.dumps(pod))


def phase(name: str) -> str:
    shown: str = found("pod", name)["status"]["phase"]
    return shown


def environment_of(name: str) -> dict[str, str]:
    until(lambda: phase(name) == "Running", f"{name} runs", within_s=90)
    log = until(lambda: printed if "devices=" in "".join(printed := log_of(name)) else None, f"{name} has printed it")
    return dict(line.partition("=")[::2] for line in log)


def log_of(name: str, namespace: str = "default") -> list[str]:
    """As the runtime writes it: time, stream, kind and text. `kubectl logs` would need the node's name in DNS."""
    uid = found("-n", namespace, "pod", name)["metadata"]["uid"]
    (file,) = Path(TESTBED, "run/pod-logs").glob(f"{namespace}_{name}_{uid}/*/0.log")
    return [line.split(" ", 3)[3] for line in file.read_text().splitlines()]


def pid_of(name: str, namespace: str = "default", command: bytes = b"100000") -> int | None:
    """The process of a pod's container with this in its command, by the pod's UID in its cgroup."""
    uid = found("-n", namespace, "pod", name)["metadata"]["uid"]
    for each in Path("/proc").glob("[0-9]*"):
        try:
            is_its = uid in (each / "cgroup").read_text() and command in (each / "cmdline").read_bytes()
        except OSError:
            continue
        if is_its:
            return int(each.name)
    return None


def until_offered(resource: str, count: int) -> None:
    until(lambda: allocatable(resource) == count, f"{count} of {resource} are allocatable", within_s=90)


@dataclass
class Cluster:
    agent: RunningAgent
    driver: FakeNvml

    def metric(self, beginning: str) -> list[str]:
        return [line for line in self.agent.get("/metrics")[1].splitlines() if line.startswith(beginning)]


@contextmanager
def agent_on(driver: FakeNvml, directory: Path, cdi: Path | None = None) -> Iterator[Cluster]:
    """The agent with the rights of the manifests' service account. `cdi`: where CDI files are."""
    token = directory / "token"
    token.write_text(kubectl("-n", "monitoring", "create", "token", "gpucommons"))
    config = directory / "agent.toml"
    config.write_text(
        f"""
[kubernetes]
api_url = "{yaml.safe_load(Path(TESTBED, "run/admin.conf").read_text())["clusters"][0]["cluster"]["server"]}"
ca_file = "{TESTBED}/run/certs/apiserver.crt"
token_file = "{token}"
node_name = "node1"
shares_per_gpu = {PER_GPU}
report_faults = "taint"

[path]
kubelet_socket = "{TESTBED}/run/kubelet/pod-resources/kubelet.sock"
cdi = "{cdi or directory}"
"""
    )
    environment = {**driver.environment(), "NVSHARE_VIRTUAL_DEVICES": str(NVSHARE_PER_GPU)}
    with running_agent("--config", str(config), environment=environment) as agent:
        yield Cluster(agent, driver)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    directory = tmp_path_factory.mktemp("driver")
    (directory / "library").mkdir()
    made = FakeNvml(directory / "driver", build(directory / "library"))
    made.say("gpus 2", "recording idle")
    return made


@pytest.fixture(scope="module", autouse=True)
def rights() -> None:
    for file in ("namespace.yaml", "rbac.yaml", "faults/rbac.yaml", "faults/taint-rbac.yaml"):
        kubectl("apply", "-f", str(MANIFESTS / file))


@pytest.fixture
def cluster(driver: FakeNvml, tmp_path: Path) -> Iterator[Cluster]:
    kubectl("delete", "pods", "--all", "--grace-period=0", "--force", "--wait=true")
    with agent_on(driver, tmp_path) as running:
        until_offered(SHARE, 2 * PER_GPU)
        yield running


def test_pods_get_shares_of_gpus(cluster: Cluster) -> None:
    until_offered(NVSHARE, 2 * NVSHARE_PER_GPU)
    run_pod("two", SHARE, 2, annotations={"gpucommons.io/core": "40"})
    run_pod("old", NVSHARE, 1)
    both = environment_of("two")["NVIDIA_VISIBLE_DEVICES"].split(",")
    assert len(set(both)) == 2, "spread over two GPUs"
    assert all(each.startswith("GPU-") for each in both)
    old = environment_of("old")
    assert old["NVIDIA_VISIBLE_DEVICES"] in both
    assert "LD_PRELOAD" not in old
    run_pod("large", SHARE, 7)
    until(
        lambda: any(
            each["type"] == "PodScheduled" and each["status"] == "False"
            for each in found("pod", "large")["status"].get("conditions", [])
        ),
        "the scheduler counts the shares",
    )
    # The agent reads them back: by the kubelet's PodResources and the API server.
    until(lambda: len(cluster.metric("DCGM_FI_DEV_GPU_UTIL{")) >= 2, "the GPUs have series")
    until(
        lambda: {
            name for name in ("two", "old") if f'pod="{name}"' in "".join(cluster.metric("DCGM_FI_DEV_GPU_UTIL{"))
        },
        "the pods are named",
    )


def test_gpus_are_given_by_cdi_where_the_runtime_has_it(driver: FakeNvml, tmp_path: Path) -> None:
    """The device and the variable of the CDI file are in the container, and only those of its own GPU."""
    described = Path(TESTBED, "run/cdi")
    with agent_on(driver, tmp_path, described) as cluster:
        until_offered(SHARE, 2 * PER_GPU)
        uuids = sorted(set(re.findall(r'UUID="(GPU-[^"]+)"', "".join(cluster.metric("DCGM_FI_DEV_GPU_UTIL{")))))
        devices = []
        for index, uuid in enumerate(uuids):
            node = tmp_path / f"gpu{index}"
            # As /dev/null: a device file that every kernel has.
            os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            edits = {
                "deviceNodes": [{"path": f"/dev/fake-gpu{index}", "hostPath": str(node)}],
                "env": [f"CDI{index}=yes"],
            }
            devices.append({"name": uuid, "containerEdits": edits})
        document = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
        file = described / "nvidia.json"
        file.write_text(json.dumps(document))
        try:
            run_pod("by-cdi", SHARE, 1)
            run_pod("by-cdi-two", SHARE, 2)
            one, both = environment_of("by-cdi"), environment_of("by-cdi-two")
        finally:
            file.unlink()
    assert "NVIDIA_VISIBLE_DEVICES" not in one | both
    given = [index for index in (0, 1) if one.get(f"CDI{index}") == "yes"]
    assert len(given) == 1
    assert [name for name in one["devices"].split() if name.startswith("fake-gpu")] == [f"fake-gpu{given[0]}"]
    assert {name for name in both["devices"].split() if name.startswith("fake-gpu")} == {"fake-gpu0", "fake-gpu1"}
    assert both["CDI0"] == both["CDI1"] == "yes"


def test_what_a_pod_uses_is_attributed_to_it(cluster: Cluster) -> None:
    run_pod("trainer", SHARE, 1)
    environment_of("trainer")
    pid = until(lambda: pid_of("trainer"), "its process runs")
    # What owners have is never more than what the GPU has in use: the driver reports both.
    in_use = f"set nvmlDeviceGetMemoryInfo_v2 0 0 {8 * 2**30} 0 {7 * 2**30} {2**30}"
    cluster.driver.say(process(0, pid, 2**30), in_use)
    try:
        owned = 'gpucommons_owner_gpu_memory_bytes{gpu="0"'
        (line,) = until(
            lambda: [each for each in cluster.metric(owned) if float(each.split()[-1]) == 2**30],
            "all of its memory has one owner",
        )
        assert 'kind="pod",owner="trainer",namespace="default"' in line
    finally:
        cluster.driver.unsay("process", "set")


def test_a_kubelet_and_an_agent_that_restart(cluster: Cluster, tmp_path: Path) -> None:
    run_pod("before", SHARE, 1)
    environment_of("before")
    subprocess.run([ROOT / "scripts" / "kubernetes-testbed", "restart-kubelet", TESTBED], check=True, timeout=120)
    until(
        lambda: cluster.metric("gpucommons_kubernetes_registrations_total")[0].endswith(" 4"),
        "both resources are registered again",
        within_s=60,
    )
    until_offered(SHARE, 2 * PER_GPU)
    assert phase("before") == "Running"
    run_pod("after", SHARE, 1)
    assert environment_of("after")["NVIDIA_VISIBLE_DEVICES"] != environment_of("before")["NVIDIA_VISIBLE_DEVICES"]
    cluster.agent.stop()
    until_offered(SHARE, 0)
    assert phase("after") == "Running", "pods keep what they have while no agent runs"
    again = tmp_path / "again"
    again.mkdir()
    with agent_on(cluster.driver, again):
        until_offered(SHARE, 2 * PER_GPU)
        run_pod("last", SHARE, 1)
        environment_of("last")


def test_a_lost_gpu_and_its_return(cluster: Cluster) -> None:
    run_pod("hit", SHARE, 2)
    environment_of("hit")
    kubectl("taint", "nodes", "node1", "example.org/by-hand=yes:NoSchedule", "--overwrite")
    until(lambda: 'pod="hit"' in "".join(cluster.metric("DCGM_FI_DEV_GPU_UTIL{")), "its devices are known")
    try:
        cluster.driver.say("fail * 15 1")
        until(condition, "the node has the condition", within_s=60)
        assert (condition()["status"], condition()["reason"]) == ("True", "GPULost")
        assert set(taints()) == {"example.org/by-hand", "gpucommons.io/gpu-problem"}
        until_offered(SHARE, PER_GPU)
        for kind, name in (("Node", "node1"), ("Pod", "hit")):
            selector = f"involvedObject.kind={kind},involvedObject.name={name},reason=GPULost"
            until(lambda: found("events", "-A", "--field-selector", selector)["items"], f"an event on {kind} {name}")  # noqa: B023
    finally:
        cluster.driver.unsay("fail")
    begun = time.monotonic()
    until(lambda: condition() is None, "the condition is gone", within_s=120)
    assert time.monotonic() - begun > 30, "not at the first good reading"
    assert taints() == ["example.org/by-hand"]
    until_offered(SHARE, 2 * PER_GPU)
    kubectl("taint", "nodes", "node1", "example.org/by-hand-")


def test_only_the_kubelet_reaches_the_sockets_of_the_plugin(cluster: Cluster) -> None:
    """Not another user of the node, nor a pod that mounts nothing."""
    sockets = list(Path("/var/lib/kubelet/device-plugins").glob("gpucommons-*.sock"))
    assert len(sockets) == 2
    connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    for path in sockets:
        done = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", connect, path],
            capture_output=True,
            text=True,
        )
        assert "Permission denied" in done.stderr, done.stderr
    run_pod("curious", SHARE, 1)
    environment_of("curious")
    inside = Path(f"/proc/{until(lambda: pid_of('curious'), 'its process runs')}/root/var/lib/kubelet")
    assert not inside.exists()


@contextmanager
def driver_in_containers(
    environment: Mapping[str, str], *directories: Path, devices: Path | None = None
) -> Iterator[None]:
    """As NVIDIA's toolkit and operator leave a node: a runtime that adds the driver, its class, and a label.

    `directories` are those of the fake driver, and `environment` has its variables. The files of `devices` are in the
    containers' /dev, as one that the toolkit binds there.
    """
    runtime_class = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    kubectl("apply", "-f", "-", given=json.dumps(runtime_class | {"handler": "nvidia"}))
    kubectl("label", "node", "node1", "nvidia.com/gpu.present=true", "--overwrite")
    sources = {str(path): str(path) for path in directories}
    sources |= {f"/dev/{file.name}": str(file) for file in (devices.iterdir() if devices else ())}
    bind: dict[str, Any] = {"type": "bind", "options": ["rbind"]}
    mounts = [{"destination": path, "source": source} | bind for path, source in sources.items()]
    given = {"env": [f"{name}={value}" for name, value in environment.items()], "mounts": mounts}
    file = Path(TESTBED, "run/driver.json")
    file.write_text(json.dumps(given))
    # Directories of the host that the manifests make.
    made = [path for path in HOST_DIRECTORIES if not path.exists()]
    try:
        yield
    finally:
        file.unlink()
        kubectl("label", "node", "node1", "nvidia.com/gpu.present-")
        kubectl("delete", "runtimeclass", "nvidia")
        for path in made:
            shutil.rmtree(path, ignore_errors=True)


def needs_image() -> None:
    command = [f"{TESTBED}/bin/ctr", "-a", f"{TESTBED}/run/containerd.sock", "-n", "k8s.io", "images", "ls", "-q"]
    if "library/gpucommons:latest" not in subprocess.run(command, capture_output=True, text=True, check=True).stdout:
        pytest.skip("no image of the agent: scripts/kubernetes-testbed agent-image DIR")


def test_the_manifests_run_as_they_are(driver: FakeNvml) -> None:
    """The image, its DaemonSet and Service, and the patch for shares: pods get shares from an agent that is a pod."""
    needs_image()
    kubectl("delete", "pods", "--all", "--grace-period=0", "--force", "--wait=true")
    files = [argument for file in MANIFEST_FILES for argument in ("-f", str(MANIFESTS / file))]
    with driver_in_containers(driver.environment(), driver.library.parent, driver.directory):
        kubectl("apply", *files)
        try:
            agents = ("-n", "monitoring", "pods", "-l", "app.kubernetes.io/component=agent-gpu")
            kubectl("-n", "monitoring", "rollout", "status", "daemonset/gpucommons-gpu", "--timeout=120s", within_s=130)
            for patch in ("shares", "faults"):
                file = str(MANIFESTS / patch / "agent-patch.yaml")
                kubectl("-n", "monitoring", "patch", "daemonset", "gpucommons-gpu", "--patch-file", file)
            until_offered(SHARE, 20)
            run_pod("share", SHARE, 2)
            assert len(environment_of("share")["NVIDIA_VISIBLE_DEVICES"].split(",")) == 2
            (agent,) = (each for each in found(*agents)["items"] if "deletionTimestamp" not in each["metadata"])

            def metrics() -> str:
                url = f"http://{agent['status']['podIP']}:9460/metrics"
                return str(urllib.request.urlopen(url, timeout=10).read().decode())

            until(lambda: 'pod="share"' in metrics(), "the agent has the names of pods, by its service account")
            driver.say("fail * 15 1")
            until(condition, "the node has the condition", within_s=60)
            driver.unsay("fail")
            until(lambda: condition() is None, "the condition is gone", within_s=120)
            (status,) = found(*agents)["items"][0]["status"]["containerStatuses"]
            assert status["restartCount"] == 0
        finally:
            driver.unsay("fail")
            kubectl("delete", "--ignore-not-found", *files, within_s=120)
    until_offered(SHARE, 0)


GIB = 1 << 30
API_SOCKET = "/run/gpucommons/api.sock"
SCHEDULER_SOCKET = "/run/nvshare/scheduler.sock"


class SharedPods:
    """Pods with a program each on one GPU, and what the agent says of them."""

    def __init__(self, shared: SharedGpu) -> None:
        self.shared = shared

    def program(
        self, name: str, memory_bytes: int, solo: Activity | None, priority_class: str = "", limit: str = ""
    ) -> SharedProgram:
        """In the agent's image, which has a C library. Idle without `solo`. `limit` is that of its host memory."""
        resources = {"limits": {SHARE: "1", **({"memory": limit} if limit else {})}}
        spec = {
            # The fake program is known by its pid on the node.
            "hostPID": True,
            "runtimeClassName": "nvidia",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": name, "resources": resources, "securityContext": {"runAsUser": 0}}],
            **({"priorityClassName": priority_class} if priority_class else {}),
        }
        overrides = json.dumps({"apiVersion": "v1", "spec": spec})
        kubectl_run = (
            *(f"{TESTBED}/bin/kubectl", "--kubeconfig", f"{TESTBED}/run/admin.conf", "run", name, "--restart=Never"),
            *("--image=gpucommons:latest", "--image-pull-policy=Never", "--override-type=strategic"),
            *(f"--overrides={overrides}", "--command", "--"),
        )
        phases = () if solo else (Phase(None),)
        started = self.shared.program(
            solo, phases=phases, memory_bytes=memory_bytes, prefix=kubectl_run, is_elsewhere=True
        )
        if solo is None:
            started.program.wait_for_user()
        return started

    def row(self, program: SharedProgram) -> dict[str, Any]:
        """Empty while it takes no part."""
        # By the agent's socket on the node, where root sees every name.
        done = command("scheduler", "status", "--json", environment={"GPUCOMMONS_WEB_SOCKET": f"unix:{API_SOCKET}"})
        assert done.returncode == 0, done.stderr
        clients = json.loads(done.stdout)["turns"]["clients"].values()
        return next((row for row in clients if row["pid"] == program.pid), {})

    def order(self, order: str, name: str) -> "subprocess.CompletedProcess[str]":
        """As root of the node gives it, by the name of the pod."""
        return command(order, f"default/{name}", "--socket", SCHEDULER_SOCKET)


def cgroups_seen_by_agent(namespace: str) -> dict[str, bool]:
    """The host's hierarchies of cgroups in the agent's container, and whether it can write each of them."""
    selector = "gpucommons.io/agent=true"
    (agent,) = found("-n", namespace, "pods", "-l", selector, "--field-selector", "status.phase=Running")["items"]
    pid = pid_of(agent["metadata"]["name"], namespace, b"gpucommons")
    mounts = [line.split() for line in Path(f"/proc/{pid}/mounts").read_text().splitlines()]
    beginning = "/host/sys/fs/cgroup"
    return {row[1].removeprefix(beginning): row[3].startswith("rw") for row in mounts if row[1].startswith(beginning)}


def hosts_cgroups() -> set[str]:
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return {row[1].removeprefix("/sys/fs/cgroup") for row in mounts if row[1].startswith("/sys/fs/cgroup")}


def restarts(*arguments: str) -> dict[str, int]:
    pods = found("pods", *arguments)["items"]
    return {each["metadata"]["name"]: each["status"]["containerStatuses"][0]["restartCount"] for each in pods}


@contextmanager
def shared_pods(directory: Path, sections: str = "", devices: Path | None = None) -> Iterator[SharedPods]:
    """The agent and the pauser as their manifests run them, with shares and sharing. `sections` are of the agent's
    configuration file, `devices` are the GPUs' device files."""
    kubectl("delete", "pods", "--all", "--grace-period=0", "--force", "--wait=true")
    names = ("config.yaml", "daemonset.yaml", "service.yaml", "sharing/pauser.yaml")
    files = [argument for name in names for argument in ("-f", str(MANIFESTS / name))]
    (background, _) = yaml.safe_load_all((MANIFESTS / "shares" / "background.yaml").read_text())
    variables = {"FAKE_DEVICE_FILES": "/dev"} if devices else {}
    with (
        SharedGpu(directory / "gpus") as shared,
        driver_in_containers(shared.environment() | variables, built().nvml.parent.parent, directory, devices=devices),
    ):
        kubectl("apply", *files)
        kubectl("apply", "-f", "-", given=json.dumps(background))
        try:
            settings = found("-n", "monitoring", "configmap", "gpucommons")["data"]
            (file,) = settings
            added = {"data": {file: settings[file] + sections}}
            kubectl("-n", "monitoring", "patch", "configmap", "gpucommons", "--type=merge", "-p", json.dumps(added))
            for patch in ("shares", "sharing"):
                path = str(MANIFESTS / patch / "agent-patch.yaml")
                kubectl("-n", "monitoring", "patch", "daemonset", "gpucommons-gpu", "--patch-file", path)
            for name in ("gpucommons-pauser", "gpucommons-gpu"):
                kubectl("-n", "monitoring", "rollout", "status", f"daemonset/{name}", "--timeout=120s", within_s=130)
            until_offered(SHARE, 10)
            yield SharedPods(shared)
        finally:
            kubectl("delete", "pods", "--all", "--grace-period=0", "--force", "--wait=true")
            kubectl("delete", "--ignore-not-found", *files, within_s=120)
            kubectl("delete", "priorityclass", "background")
    until_offered(SHARE, 0)


def test_programs_of_pods_take_turns_by_what_their_pods_say() -> None:
    """PriorityClass, annotations and labels while the pod runs, and a namespace's limit."""
    needs_image()
    limit = '[sharing_quotas]\nlimited = { namespace = "default", core = 50 }\n'
    with open_folder() as directory, shared_pods(directory, limit) as pods:
        night = pods.program("night", GIB, MATMUL[8192], "background")
        until(lambda: pods.row(night).get("sharing_class") == "background", "its PriorityClass is its class")
        until(lambda: night.progress() > 0.5, "the night's work computes")
        day = pods.program("day", GIB, MATMUL[8192])
        until(lambda: pods.row(night).get("standing") == "waiting", "the background waits while another computes")
        assert pods.row(day)["core_quota_percent"] == 50, "its namespace's limit"
        for core, (percent, source) in {"40": (40, "annotation"), "90": (50, "config")}.items():
            kubectl("annotate", "pod", "day", f"gpucommons.io/core={core}", "--overwrite")
            until(
                lambda: (row := pods.row(day))["core_quota_percent"] == percent and row["core_quota_source"] == source,  # noqa: B023
                f"{core} % takes effect, and not more than the namespace has",
                within_s=10,
            )
        kubectl("label", "pod", "day", "gpucommons.io/class=background")
        until(lambda: pods.row(day)["sharing_class"] == "background", "a label takes effect", within_s=10)
        assert set(restarts("-n", "monitoring").values()) == {0}


def test_a_pod_of_the_background_is_parked_in_its_own_memory_limit() -> None:
    """It is not evicted. What is parked is charged to its pod, so that the agent's smaller limit does not count."""
    needs_image()
    with open_folder() as directory, shared_pods(directory) as pods:
        (agent,) = found("-n", "monitoring", "daemonset", "gpucommons-gpu")["spec"]["template"]["spec"]["containers"]
        assert agent["resources"]["limits"]["memory"] == "512Mi"
        assert cgroups_seen_by_agent("monitoring") == dict.fromkeys(hosts_cgroups(), False)
        night = pods.program("night", 2 * GIB, MATMUL[8192], "background", limit="3Gi")
        narrow = pods.program("narrow", 2 * GIB, MATMUL[512], limit="1Gi")
        until(lambda: pods.row(night) and pods.row(narrow), "the agent sees both")
        done = pods.order("park", "narrow")
        assert "it needs 2.0 GiB of host memory, the memory limit of its container leaves 1.0 GiB" in done.stdout
        assert done.returncode == 1
        assert narrow.program.state is not State.CHECKPOINTED
        done = pods.order("park", "night")
        assert (done.returncode, "parked in" in done.stdout) == (0, True), done.stdout + done.stderr
        assert (night.program.state, night.program.host_bytes) == (State.CHECKPOINTED, 2 * GIB)
        day = pods.program("day", GIB, MATMUL[8192])
        until(lambda: day.progress() > 0.5, "others compute")
        assert night.program.state is State.CHECKPOINTED
        done = pods.order("wake", "night")
        assert (done.returncode, "is back on the GPU" in done.stdout) == (0, True), done.stdout + done.stderr
        assert night.program.gpu_bytes == 2 * GIB
        computed = night.progress()
        kubectl("delete", "pod", "day", "--grace-period=0", "--force")
        day.end()
        until(lambda: night.progress() > computed + 0.5, "the night's work goes on")
        assert set(restarts().values()) == set(restarts("-n", "monitoring").values()) == {0}


@contextmanager
def small_gpu() -> Iterator[SharedPods]:
    """A GPU of 4 GiB, on which a new program finds 3 GiB free."""
    sections = '[parking]\narrival_idle_after_s = 2\narrival_room = "3Gi"\nsettle_s = 2\nmin_residence_s = 0\n'
    with (
        open_folder() as directory,
        shared_pods(directory, sections, device_files(directory / "dev")) as pods,
    ):
        pods.shared.nvml.say(f"set nvmlDeviceGetMemoryInfo_v2 0 0 {4 * GIB} 0 {4 * GIB} 0")
        pods.shared.cuda.gpu_has(4 * GIB)
        yield pods


def wait_until_new_programs_would_wait() -> str:
    """The agent's pod."""
    (agent,) = (name for name in restarts("-n", "monitoring") if name.startswith("gpucommons-gpu"))
    until(
        lambda: "new programs wait for room on nvidia0" in "".join(log_of(agent, "monitoring")),
        "a new program would wait",
    )
    return agent


def test_a_pod_of_the_background_that_computes_is_parked_for_one_that_begins() -> None:
    """By its PriorityClass. Not for another of its class, which is known before the driver lists its program."""
    needs_image()
    with small_gpu() as pods:
        night = pods.program("night", 2 * GIB, MATMUL[8192], "background")
        agent = wait_until_new_programs_would_wait()
        other = pods.program("other", GIB, MATMUL[512], "background")
        until(lambda: "no program is left that could be parked" in "".join(log_of(agent, "monitoring")), "it goes on")
        assert night.program.state is not State.CHECKPOINTED
        kubectl("delete", "pod", "other", "--grace-period=0", "--force")
        other.end()
        day = pods.program("day", 3 * GIB, MATMUL[512])
        until(lambda: day.progress() > 0.2, "it has its memory, and computes")
        assert (day.program.gpu_bytes, night.program.host_bytes) == (3 * GIB, 2 * GIB)
        computed = night.progress()
        kubectl("delete", "pod", "day", "--grace-period=0", "--force")
        day.end()
        until(lambda: night.progress() > computed + 0.2, "the night's work goes on")
        assert night.program.gpu_bytes == 2 * GIB
        assert set(restarts().values()) == set(restarts("-n", "monitoring").values()) == {0}


def test_an_idle_pod_is_parked_for_one_that_begins_on_a_full_gpu() -> None:
    needs_image()
    with small_gpu() as pods:
        lab = pods.program("lab", 2 * GIB, None)
        wait_until_new_programs_would_wait()
        new = pods.program("new", 3 * GIB, MATMUL[512])
        until(lambda: new.progress() > 0.2, "it has its memory, and computes")
        assert (new.program.gpu_bytes, lab.program.host_bytes) == (3 * GIB, 2 * GIB)
        kubectl("delete", "pod", "new", "--grace-period=0", "--force")
        new.end()
        lab.program.run_cell()
        until(lambda: lab.program.cells > 0, "the idle one is used, and comes back")
        assert lab.program.gpu_bytes == 2 * GIB
        assert set(restarts().values()) == {0}


def helm(*arguments: str) -> str:
    done = subprocess.run(
        [f"{TESTBED}/bin/helm", "--kubeconfig", f"{TESTBED}/run/admin.conf", "--namespace", "by-helm", *arguments],
        capture_output=True,
        text=True,
        timeout=230,
    )
    assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


def test_the_chart_is_installed_tested_updated_and_removed() -> None:
    """Updated with shares, reports of faults and sharing, which runs the pauser."""
    needs_image()
    chart = str(ROOT / "deploy" / "helm" / "gpucommons")
    with (
        open_folder() as directory,
        SharedGpu(directory / "gpus", 2) as shared,
        driver_in_containers(shared.environment(), built().nvml.parent.parent, directory),
    ):
        try:
            helm("install", "commons", chart, "--create-namespace", "--wait", "--timeout=120s")
            assert "Phase:          Succeeded" in helm("test", "commons", "--timeout=90s")
            values = "shares.perGpu=3,faults.report=taint,sharing.enabled=true"
            helm("upgrade", "commons", chart, "--set", values, "--wait", "--timeout=120s")
            until_offered(SHARE, 6)
            kubectl("-n", "by-helm", "rollout", "status", "daemonset/commons-pauser", "--timeout=60s", within_s=70)
            assert cgroups_seen_by_agent("by-helm") == dict.fromkeys(hosts_cgroups(), False)
            assert "Phase:          Succeeded" in helm("test", "commons", "--timeout=90s")
        finally:
            helm("uninstall", "commons", "--ignore-not-found", "--wait", "--timeout=60s")
    until_offered(SHARE, 0)
    assert "commons" not in kubectl("get", "clusterroles,clusterrolebindings", "-o", "name").replace("gpucommons", "")


@pytest.mark.parametrize(
    "file", ["config.yaml", "daemonset.yaml", "daemonset-cpu.yaml", "service.yaml", "sharing/pauser.yaml"]
)
def test_the_manifests_are_accepted_as_they_are(file: str) -> None:
    kubectl("apply", "--dry-run=server", "-f", str(MANIFESTS / file))


@pytest.mark.parametrize("patch", ["sharing", "shares", "faults"])
def test_the_patches_fit_the_daemonset(patch: str) -> None:
    kubectl("apply", "-f", str(MANIFESTS / "config.yaml"), "-f", str(MANIFESTS / "daemonset.yaml"))
    try:
        file = str(MANIFESTS / patch / "agent-patch.yaml")
        kubectl("-n", "monitoring", "patch", "daemonset", "gpucommons-gpu", "--dry-run=server", "--patch-file", file)
    finally:
        kubectl("delete", "-f", str(MANIFESTS / "daemonset.yaml"))


@pytest.mark.parametrize("rendered", ["chart.yaml", "chart-sharing.yaml", "chart-shares.yaml"])
def test_the_chart_is_accepted_as_helm_renders_it(rendered: str) -> None:
    documents = yaml.safe_load_all((ROOT / "tests" / "deploy" / rendered).read_text())
    kept = [each for each in documents if each and each["kind"] != "PodMonitor"]
    kubectl("apply", "--dry-run=server", "-f", "-", given=yaml.safe_dump_all(kept))
