"""nvshare's device plugin and the agent's, each asked by the same kubelet: what they offer and what a container gets.

`python -m bench.device_plugin_peer [PROGRAM]`, as root, with `nvshare-device-plugin` as its build makes it. Without it
the responses that it gave (nvshare at 1a8f211) are compared. Each plugin runs alone, with NVSHARE_VIRTUAL_DEVICES=10
and one GPU, in a root of its own, where /var/lib/kubelet is a stand-in's. Bar: every difference has a reason below, and
with `nvshare_library = true` a container gets the same.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import grpc.aio

from bench.inside import logged_program, run_inside
from bench.table import show
from fakes.device_manager import DeviceManager
from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml

RESOURCE, SHARES = "nvshare.com/gpu", 10
PLUGINS = Path("/var/lib/kubelet/device-plugins")
# The folder that stands for a list of GPUs where containers may not choose them by a variable.
MOUNTED = Path("/var/run/nvidia-container-devices")

Seen = dict[str, str]

_LIBRARY = "/usr/lib/nvshare/libnvshare.so <- /var/run/nvshare/libnvshare.so read-only"
_SOCKET = "/var/run/nvshare/scheduler.sock <- /var/run/nvshare/scheduler.sock read-only"
# What nvshare's plugin answered. UUID stands for that of the GPU.
_BY_VARIABLE: Seen = {
    "offered": "UUID__1 to UUID__10, Healthy",
    "preferred allocation": "no",
    "one share: variables": "LD_PRELOAD=/usr/lib/nvshare/libnvshare.so, NVIDIA_VISIBLE_DEVICES=UUID",
    "one share: mounts": f"{_LIBRARY}, {_SOCKET}",
    "one share: devices": "none",
    "two shares": "as one share",
    "an unknown share": "UNKNOWN: invalid allocation request for 'nvshare.com/gpu' - unknown device: UUID__11",
    "after a restart of the kubelet": "registered again",
}
_BY_MOUNTS: Seen = _BY_VARIABLE | {
    "one share: variables": f"LD_PRELOAD=/usr/lib/nvshare/libnvshare.so, NVIDIA_VISIBLE_DEVICES={MOUNTED}",
    "one share: mounts": f"{_LIBRARY}, {MOUNTED}/UUID <- /dev/null, {_SOCKET}",
}
RECORDED: Mapping[str, Seen] = {"variable": _BY_VARIABLE, "mounts": _BY_MOUNTS}
REASONS = {
    "preferred allocation": "shares of one container on several GPUs, or packed on one (placement)",
    "one share: variables": "turns need no library in the program",
    "one share: mounts": "turns need no library in the program",
    "an unknown share": "the kubelet fails the pod in both cases; the status is more exact",
}
ALWAYS = {"preferred allocation", "an unknown share"}


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or not Path(arguments[-1]).is_dir():
        run_inside("bench.device_plugin_peer", *arguments, within_s=300)
    with asyncio.Runner() as runner:
        compare(runner, Path(arguments[0]) if len(arguments) == 2 else None, Path(arguments[-1]))


def compare(runner: asyncio.Runner, program: Path | None, directory: Path) -> None:
    fake = FakeNvml(directory / "driver", build(directory / "library"))
    fake.say("gpus 1")
    fake.load_here()
    uuid = gpu_uuid()
    for own_directory in (PLUGINS.parent, MOUNTED):
        # This root may have a link to the machine's directory.
        own_directory.unlink(missing_ok=True)
    PLUGINS.mkdir(parents=True)
    MOUNTED.mkdir(parents=True)
    (MOUNTED / uuid).touch()
    agent = [sys.executable, "-m", "gpucommons", "up"]
    own = {
        **fake.environment(),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "GPUCOMMONS_WEB_LISTEN": "",
        "GPUCOMMONS_WEB_SOCKET": "",
        "GPUCOMMONS_LEDGER_ENABLED": "false",
        "GPUCOMMONS_LEASES_ENABLED": "false",
    }
    library = {**own, "GPUCOMMONS_KUBERNETES_NVSHARE_LIBRARY": "true"}
    mounts = {**library, "GPUCOMMONS_KUBERNETES_DEVICE_INJECTION": "mounts"}
    theirs = dict(RECORDED)
    if program is None:
        print("nvshare-device-plugin is not given: its recorded responses are compared")
    else:
        for exposure, value in (("variable", uuid), ("mounts", str(MOUNTED))):
            theirs[exposure] = drive(runner, [str(program)], {"NVIDIA_VISIBLE_DEVICES": value}, directory, uuid)
    failed = False
    for title, exposure, environment, expected in (
        ("by default", "variable", own, REASONS.keys()),
        ("with nvshare_library = true", "variable", library, ALWAYS),
        ("with nvshare_library = true, and GPUs given by mounts", "mounts", mounts, ALWAYS),
    ):
        ours = drive(runner, agent, environment, directory, uuid)
        rows = [(what, theirs[exposure][what], ours[what]) for what in ours]
        different = {what for what, one, other in rows if one != other}
        failed |= different != set(expected)
        show(
            f"nvshare's device plugin and the agent's {title}",
            ("", "nvshare", "agent", "why"),
            [
                (what, one, "same" if one == other else other, REASONS.get(what, "") if one != other else "")
                for what, one, other in rows
            ],
        )
    if theirs != RECORDED:
        print("the program answers otherwise than recorded in bench/device_plugin_peer.py")
    sys.exit(failed or theirs != RECORDED)


def gpu_uuid() -> str:
    import pynvml

    pynvml.nvmlInit()
    found: str = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
    return found


def drive(
    runner: asyncio.Runner, command: list[str], environment: Mapping[str, str], directory: Path, uuid: str
) -> Seen:
    own = {**os.environ, **environment, "NVSHARE_VIRTUAL_DEVICES": str(SHARES)}
    with logged_program(command, own, directory / "plugin.log"):
        seen = runner.run(ask_twice(uuid))
    return {what: shown.replace(uuid, "UUID") for what, shown in seen.items()}


async def ask_twice(uuid: str) -> Seen:
    kubelet = DeviceManager(PLUGINS)
    async with kubelet.running():
        seen = await ask(kubelet, uuid)
    async with kubelet.running():
        await kubelet.until(RESOURCE, SHARES)
    return seen | {"after a restart of the kubelet": "registered again"}


async def ask(kubelet: DeviceManager, uuid: str) -> Seen:
    endpoint = await kubelet.until(RESOURCE, SHARES)
    ids = [f"{uuid}__{number}" for number in range(1, SHARES + 1)]
    offered = f"{ids[0]} to {ids[-1]}, {', '.join(set(endpoint.devices.values()))}"
    one = await kubelet.allocate(RESOURCE, ids[:1])
    mounts = sorted(
        f"{each.container_path} <- {each.host_path}{' read-only' if each.read_only else ''}" for each in one.mounts
    )
    devices = [*(each.host_path for each in one.devices), *(each.name for each in one.cdi_devices)]
    try:
        await kubelet.allocate(RESOURCE, [f"{uuid}__{SHARES + 1}"])
        unknown = "given"
    except grpc.aio.AioRpcError as error:
        unknown = f"{error.code().name}: {error.details()}"
    return {
        "offered": offered if list(endpoint.devices) == ids else ", ".join(endpoint.devices),
        "preferred allocation": "yes" if endpoint.prefers else "no",
        "one share: variables": ", ".join(f"{name}={one.envs[name]}" for name in sorted(one.envs)),
        "one share: mounts": ", ".join(mounts) or "none",
        "one share: devices": ", ".join(devices) or "none",
        "two shares": "as one share" if await kubelet.allocate(RESOURCE, ids[:2]) == one else "other",
        "an unknown share": unknown,
    }


if __name__ == "__main__":
    main()
