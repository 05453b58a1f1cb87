"""k8s-vgpu-monitor and the vgpu dialect on one node: every series of both, and where they differ.

`python -m bench.vgpu_peer VGPU_MONITOR`, as root, with the program that k8s-vgpu-monitor's build makes. Both read the
same fake driver with two GPUs, the same processes in the cgroups of pods, the same API server, and the same ratio 2 in
gpu_allocation.txt; the agent also asks a kubelet. The program asks docker and find by their commands, which are
stand-ins here. All of it runs in a network namespace and a root of its own. Bar: with like_the_program no difference.
"""

import asyncio
import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.inside import run_inside
from bench.table import show
from fakes import kubelet
from fakes.api_server import ApiServer
from fakes.api_server import pod as pod_document
from fakes.authority import Authority
from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml, process, usage
from parsing import Series, parsed

MIB = 1 << 20
TOTAL = 143_771 * MIB
RATIO = 2
PEER, README, PROGRAM = 8080, 8081, 8082
NODE = "node-1"
WAIT_S = 30.0
OF_USE = ("pod_gpu_memory_used", "pod_gpu_sm_util")
# Pods, and the GPU of each of their virtual GPUs.
PODS: Mapping[str, tuple[int, ...]] = {"both": (0, 1), "twice": (1, 1), "idle": (0,), "cpu-only": ()}
# (pod, GPU, bytes, percent of the SMs).
USES = (("both", 0, 3000 * MIB + 7, 21), ("both", 1, 1000 * MIB, 10), ("twice", 1, 5001 * MIB, 33))


def uid(pod: str) -> str:
    return f"00000000-0000-0000-0000-{list(PODS).index(pod):012d}"


def container_id(pod: str) -> str:
    return f"{list(PODS).index(pod) + 1:x}" * 64


def main() -> None:
    if len(sys.argv) == 2:
        run_inside("bench.vgpu_peer", sys.argv[1], within_s=300)
    asyncio.run(compare(Path(sys.argv[1]), Path(sys.argv[2])))


async def compare(program: Path, directory: Path) -> None:
    fake = FakeNvml(directory / "driver", build(directory / "library"))
    fake.say("gpus 2")
    fake.load_here()
    uuids = gpu_uuids()
    with ExitStack() as stack:
        pids = {use[:2]: stack.enter_context(process_of(use[0])) for use in USES}
        fake.say(*(process(gpu, pids[pod, gpu], size) for pod, gpu, size, _ in USES))
        for gpu in range(2):
            used = sum(size for _, on_gpu, size, _ in USES if on_gpu == gpu)
            busy = sum(percent for _, on_gpu, _, percent in USES if on_gpu == gpu)
            fake.say(f"set nvmlDeviceGetMemoryInfo_v2 {gpu} 0 {TOTAL} 0 {TOTAL - used} {used}")
            fake.say(f"set nvmlDeviceGetUtilizationRates {gpu} {busy} 0")
        # One sample for each: the program sums all that the driver keeps.
        fake.say(*(usage(gpu, pids[pod, gpu], percent) for pod, gpu, _, percent in USES))
        prepare_program(directory, uuids)
        authority = Authority(directory)
        api = ApiServer(*(document(pod) for pod in PODS))
        api.token = "tok"
        socket = directory / "kubelet.sock"
        async with api.serving(authority.server_tls("127.0.0.1")), pod_resources(uuids).serving(socket):
            environment = {**os.environ, **fake.environment(), "PATH": f"{directory}/bin:{os.environ['PATH']}"}
            for number, like in ((README, "false"), (PROGRAM, "true")):
                stack.enter_context(agent(directory, api, authority, socket, environment, number, like))
            stack.enter_context(peer(program, directory, api, environment))
            by_port = {port: await settled(port) for port in (PEER, README, PROGRAM)}
    differ = report(by_port)
    sys.exit(1 if differ else 0)


def gpu_uuids() -> list[str]:
    import pynvml

    pynvml.nvmlInit()
    return [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(2)]


@contextmanager
def process_of(pod: str) -> Iterator[int]:
    """A process that has the cgroup of a pod, for every program in this mount namespace."""
    child = subprocess.Popen(["sleep", "600"])
    cgroup = Path(f"/run/cgroup-{child.pid}")
    cgroup.write_text(f"0::/kubepods/burstable/pod{uid(pod)}/{container_id(pod)}\n")
    subprocess.run(["mount", "--bind", str(cgroup), f"/proc/{child.pid}/cgroup"], check=True)
    try:
        yield child.pid
    finally:
        subprocess.run(["umount", f"/proc/{child.pid}/cgroup"], check=False)
        child.kill()
        child.wait()


def document(pod: str) -> dict[str, object]:
    limits = {"limits": {"nvidia.com/gpu": str(len(PODS[pod]))}} if PODS[pod] else {}
    return pod_document(pod, NODE, metadata__uid=uid(pod), spec__containers=[{"name": "main", "resources": limits}])


def pod_resources(uuids: list[str]) -> kubelet.Kubelet:
    given = {
        pod: [f"{uuids[gpu]}::{list(PODS).index(pod)}{number}" for number, gpu in enumerate(gpus)]
        for pod, gpus in PODS.items()
        if gpus
    }
    return kubelet.Kubelet(
        *(
            kubelet.pod("lab", pod, main=[kubelet.container_devices("nvidia.com/gpu", *ids)])
            for pod, ids in given.items()
        )
    )


def prepare_program(directory: Path, uuids: list[str]) -> None:
    """What the program's manifest mounts into its container, and the answers of the commands that it runs."""
    subprocess.run("mkdir -p /workspace/proc && mount --rbind /proc /workspace/proc", shell=True, check=True)
    secrets = Path("/run/secrets/kubernetes.io/serviceaccount")
    secrets.mkdir(parents=True, exist_ok=True)
    (secrets / "token").write_text("tok")
    (directory / "gpu_allocation.txt").write_text(f"{RATIO}\n")
    cases = []
    for pod, gpus in PODS.items():
        short = container_id(pod)[:12]
        visible = ",".join(uuids[gpu] for gpu in gpus)
        devices = "\\n".join(f"/dev/nvidia{gpu}" for gpu in sorted(set(gpus)))
        cases.append(f"""inspect*{short}*) printf '"NVIDIA_VISIBLE_DEVICES={visible}",\\n' ;;""")
        cases.append(f"""exec*{short}*) printf '{devices}\\n' ;;""")
    names = "".join(f"{container_id(pod)[:12]} image k8s_main_{pod}_lab_{uid(pod)}_0\\n" for pod in PODS)
    (directory / "bin").mkdir()
    executable(directory / "bin/find", "printf '/dev/nvidia0\\n/dev/nvidia1\\n'")
    executable(directory / "bin/docker", "\n".join(['case "$*" in', *cases, f"ps*) printf '{names}' ;;", "esac"]))


def executable(file: Path, script: str) -> None:
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@contextmanager
def peer(program: Path, directory: Path, api: ApiServer, environment: Mapping[str, str]) -> Iterator[None]:
    address, _, port = api.url.removeprefix("https://").partition(":")
    own = {
        **environment,
        "LD_LIBRARY_PATH": f"{environment['LD_LIBRARY_PATH']}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "KUBERNETES_SERVICE_HOST": address,
        "KUBERNETES_SERVICE_PORT": port,
        "CURRENT_NODE_NAME": NODE,
    }
    with running([str(program)], directory, own, "peer.log"):
        yield


@contextmanager
def agent(
    directory: Path,
    api: ApiServer,
    authority: Authority,
    socket: Path,
    environment: Mapping[str, str],
    port: int,
    like_the_program: str,
) -> Iterator[None]:
    token = directory / "token"
    token.write_text("tok")
    own = {
        **environment,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "GPUCOMMONS_WEB_LISTEN": "",
        "GPUCOMMONS_WEB_SOCKET": "",
        "GPUCOMMONS_LISTENERS_VGPU": f"127.0.0.1:{port}",
        "GPUCOMMONS_LEDGER_ENABLED": "false",
        "GPUCOMMONS_LEASES_ENABLED": "false",
        "GPUCOMMONS_VGPU_LIKE_THE_PROGRAM": like_the_program,
        "GPUCOMMONS_VGPU_ALLOCATION_FILE": str(directory / "gpu_allocation.txt"),
        "GPUCOMMONS_KUBERNETES_API_URL": api.url,
        "GPUCOMMONS_KUBERNETES_TOKEN_FILE": str(token),
        "GPUCOMMONS_KUBERNETES_CA_FILE": str(authority.path),
        "GPUCOMMONS_KUBERNETES_NODE_NAME": NODE,
        "GPUCOMMONS_PATH_KUBELET_SOCKET": str(socket),
    }
    with running([sys.executable, "-m", "gpucommons", "up"], directory, own, f"agent-{port}.log"):
        yield


@contextmanager
def running(command: list[str], directory: Path, environment: Mapping[str, str], log: str) -> Iterator[None]:
    with (directory / log).open("wb") as out:
        child = subprocess.Popen(command, cwd=directory, env=environment, stdout=out, stderr=out)
    try:
        yield
    except BaseException:
        print((directory / log).read_text(errors="replace")[-3000:])
        raise
    finally:
        child.terminate()
        child.wait(timeout=30)


async def settled(port: int) -> Series:
    """The series, once every pod with a GPU has its name and the busy ones have their use, or after half a minute."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        series = await asyncio.to_thread(scrape, port)
        pods = {dict(labels).get("pod") for _, labels in series}
        busy = [sum(name == family and value > 0 for (name, _), value in series.items()) for family in OF_USE]
        is_complete = pods >= {pod for pod, gpus in PODS.items() if gpus} and min(busy) >= len(USES)
        if is_complete or time.monotonic() > deadline_s:
            return series
        await asyncio.sleep(0.5)


def scrape(port: int) -> Series:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        # prometheus-cpp writes Nan.
        return parsed(connection.getresponse().read().decode().replace(" Nan\n", " NaN\n"))
    except OSError:
        return {}
    finally:
        connection.close()


def report(by_port: Mapping[int, Series]) -> int:
    """Prints every series of the three, and returns how many differ between the program and like_the_program."""
    names = sorted({key for series in by_port.values() for key in series})
    rows, differ = [], 0
    for key in names:
        values = [by_port[port].get(key) for port in (PEER, PROGRAM, README)]
        is_own = key[0].startswith("exposer_")
        same = (values[0] is None) == (values[1] is None) if is_own else values[0] == values[1]
        differ += not same
        labels = ",".join(f"{name}={value}" for name, value in key[1])
        rows.append([f"{key[0]}{{{labels}}}", *("absent" if value is None else f"{value:g}" for value in values), same])
    show(
        "k8s-vgpu-monitor and the vgpu dialect",
        ["series", "k8s-vgpu-monitor", "like_the_program", "default", "same"],
        rows,
    )
    print(f"{len([row for row in rows if row[1] != 'absent'])} series of the program, {differ} differ")
    return differ


if __name__ == "__main__":
    main()
