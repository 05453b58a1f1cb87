"""Every deployment that we ship, read from the files that we ship: command, environment, settings, ports to scrape."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from yaml_text import yaml_documents, yaml_of

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SETTINGS = "/etc/gpucommons/gpucommons.toml"

Documents = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Deployment:
    """`files` are texts by path. `targets` are (port, path) that a Prometheus on another host scrapes."""

    name: str
    command: Sequence[str]
    targets: Sequence[tuple[int, str]]
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def documented(heading: str, language: str) -> str:
    """The blocks of code in that language below a heading of docs/deploy.md, as one text."""
    page = (ROOT / "docs" / "deploy.md").read_text()
    section = re.split(r"^#+ ", page.partition(f" {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    blocks = re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert blocks, f"docs/deploy.md, {heading}: no {language}"
    return "\n".join(blocks)


def documents(*files: Path) -> Documents:
    return [document for file in files for document in yaml_documents(file.read_text())]


def unit_command(unit: str) -> list[str]:
    (command,) = re.findall(r"^ExecStart=(.+)$", (DEPLOY / "systemd" / unit).read_text(), re.MULTILINE)
    return shlex.split(command)


def image(instruction: str) -> list[str]:
    """ENTRYPOINT or CMD of the image."""
    (found,) = re.findall(rf"^{instruction} (\[.+\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    words: list[str] = json.loads(found)
    return words


def compose_service(name: str) -> Mapping[str, Any]:
    service: Mapping[str, Any] = yaml_of((DEPLOY / "compose.yaml").read_text())["services"][name]
    return service


def systemd(name: str, targets: Sequence[tuple[int, str]], settings: str = "", **environment: str) -> Deployment:
    return Deployment(name, unit_command("gpucommons.service"), targets, {SETTINGS: settings}, environment)


def ds01_environment() -> dict[str, str]:
    """The variables of the drop-in unit that docs/deploy.md shows."""
    lines = re.findall(r"^Environment=(\w+)=(\S+)$", documented("DS01's Prometheus in Docker", "ini"), re.MULTILINE)
    return dict(lines)


def docker() -> Deployment:
    (port,) = re.findall(r"^EXPOSE (\d+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    return Deployment("Docker", [*image("ENTRYPOINT"), *image("CMD")], [(int(port), "/metrics")])


def pods(name: str, found: Documents) -> list[Deployment]:
    """What the DaemonSets run. On nodes with and without GPUs that is the same but for NVIDIA's variables: one."""
    by_node = list(_pods(name, found))
    first = by_node[0]
    if all((each.command, each.files, each.targets) == (first.command, first.files, first.targets) for each in by_node):
        return [replace(first, name=name)]
    return by_node


def _pods(name: str, found: Documents) -> Iterator[Deployment]:
    """One for each DaemonSet. Scraped are all ports that it names, and what the shipped Prometheus scrapes there."""
    for daemon_set in (document for document in found if document["kind"] == "DaemonSet"):
        pod = daemon_set["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        drop_ins = [(port, "/metrics") for port in ports.values()]
        yield Deployment(
            f"{name} {daemon_set['metadata']['name']}",
            [*image("ENTRYPOINT"), *container["args"]],
            [*drop_ins, *((ports["metrics"], path) for path in _paths_of_the_cluster_prometheus())],
            dict(_mounted(pod, found)),
            {variable["name"]: variable.get("value", "node-1") for variable in container["env"]},
        )


def _mounted(pod: Mapping[str, Any], found: Documents) -> Iterator[tuple[str, str]]:
    """The files that the pod's config maps put into its container."""
    config_maps = {document["metadata"]["name"]: document for document in found if document["kind"] == "ConfigMap"}
    places = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    for volume in pod["volumes"]:
        if "configMap" not in volume:
            continue
        data = config_maps[volume["configMap"]["name"]]["data"]
        items = volume["configMap"].get("items") or [{"key": key, "path": key} for key in data]
        for item in items:
            yield f"{places[volume['name']]}/{item['path']}", data[item["key"]]


def _paths_of_the_cluster_prometheus() -> Iterator[str]:
    (config,) = [
        document["data"]["prometheus.yml"]
        for document in documents(DEPLOY / "kubernetes" / "prometheus-config.yaml")
        if "prometheus.yml" in document["data"]
    ]
    for job in yaml_of(config)["scrape_configs"]:
        if "kubernetes_sd_configs" in job:
            yield job["metrics_path"]


def scraped_from_elsewhere() -> list[Deployment]:
    """Every deployment that serves another host. Those that serve their own host alone are not among them."""
    return [
        systemd("systemd, on the network", [(9460, "/metrics")], documented("A Prometheus on another host", "toml")),
        docker(),
        *pods("Kubernetes", documents(*sorted((DEPLOY / "kubernetes").glob("*.yaml")))),
        *pods("Helm", documents(ROOT / "tests" / "deploy" / "chart.yaml")),
        systemd("DS01's variables", [(9101, "/metrics")], **ds01_environment()),
        systemd(
            "nvshare's variables",
            [(9402, "/metrics")],
            "[scheduler]\nenabled = true\n",
            NVSHARE_METRICS_ENABLE="1",
        ),
    ]
