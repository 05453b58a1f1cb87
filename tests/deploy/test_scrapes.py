"""Every shipped deployment runs with its own command and settings, and a real Prometheus finds every target up.

Each deployment has a host of its own (network namespace and root), so that it has the ports and paths that it ships
with. One Prometheus on a further host scrapes them all through veth pairs; what serves its own host alone is scraped
by the Prometheus that is shipped with it.
"""

import json
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.deployments import (
    SETTINGS,
    Deployment,
    compose_service,
    documented,
    ds01_environment,
    image,
    scraped_from_elsewhere,
    systemd,
    unit_command,
)
from gpucommons.config.stack import StackSettings
from gpucommons.stack.compose_file import ComposeHost
from gpucommons.stack.prometheus import Layout
from gpucommons.stack.render import render
from needs import needs_program
from testbeds.hosts import Host, host, join
from waiting import until
from yaml_text import yaml_of

pytestmark = pytest.mark.long

DEPLOYMENTS = scraped_from_elsewhere()
BRIDGED = "DS01's Prometheus in Docker"
# Docker's default bridge, and the bridge of the network that DS01's compose file makes.
GATEWAY, NETWORK_GATEWAY, CONTAINER = "172.17.0.1", "172.18.0.1", "172.18.0.2"
# The targets of DS01's prometheus.yml that the agent serves.
DS01_TARGETS = ("dcgm-exporter:9400", "host.docker.internal:9101", "node-exporter:9100")
# Targets by name, as the peers' own instructions and manifests name them, and the deployment that serves each.
NAMED_TARGETS = {
    "nvshare-scheduler-pod:9402": "nvshare's variables",
    "dcgm-exporter.gpu-operator.svc:9400": "Kubernetes",
    "vgpu-monitor-svc.default.svc:8080": "Kubernetes",
    "node-metrics-agent.monitoring.svc.cluster.local:9100": "Helm",
}
PROMETHEUS = "127.0.0.1:9090"
# As shipped but for the pace.
PACE = {"scrape_interval": "2s", "scrape_timeout": "2s"}
STACK = StackSettings(run_agent=True, scrape_interval_s=2.0, ds01_interval_s=2.0)
LAYOUT = Layout(Path("/var/lib/gpucommons/stack"))
STACK_FILES = render(STACK, LAYOUT, "node-1", True, ComposeHost("0:0", True))
# The jobs of the shipped Prometheus that scrape the agent, one for each dialect.
AGENT_JOBS: dict[str, str] = {
    job["job_name"]: job["metrics_path"]
    for job in yaml_of(STACK_FILES["prometheus/prometheus.yml"])["scrape_configs"]
    if "metrics_path" in job
}

Targets = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Scraped:
    """Targets by job, of a separate Prometheus and of those that a deployment ships."""

    from_elsewhere: Targets
    by_systemd: Targets
    by_compose: Targets


def run(stack: ExitStack, place: Host, deployment: Deployment, log: Path) -> None:
    """`gpucommons` of this source tree at the path of the unit and on the PATH of the image."""
    place.install(unit_command("gpucommons.service")[0])
    for path, text in deployment.files.items():
        place.write(path, text)
    path = f"{Path(unit_command('gpucommons.service')[0]).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    # The command is looked up on the PATH of the host, not on ours.
    command = ["/usr/bin/env", *deployment.command]
    stack.enter_context(place.running(command, log, {**deployment.environment, "PATH": path}))


def targets(place: Host) -> list[dict[str, Any]]:
    """The targets of the Prometheus on a host; empty while it does not answer."""
    try:
        status, body = place.get(PROMETHEUS, "/api/v1/targets?state=active")
    except OSError:
        return []
    found: list[dict[str, Any]] = json.loads(body)["data"]["activeTargets"] if status == 200 else []
    return found


def wait_until_up(place: Host, expected: Mapping[str, int], what: str) -> Targets:
    """Targets by job, once each job has the expected number and all are up, or after two minutes."""

    found: Targets = {}

    def all_up() -> bool:
        found.clear()
        found.update({job: [] for job in expected})
        for target in targets(place):
            found.setdefault(target["labels"]["job"], []).append(target)
        return all(
            len(found[job]) == number and all(target["health"] == "up" for target in found[job])
            for job, number in expected.items()
        )

    # A target that is not up by then fails its own test, with Prometheus's reason.
    with suppress(AssertionError):
        until(all_up, what, within_s=120)
    return found


def verdicts(found: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(target["scrapeUrl"], target["health"], target["lastError"]) for target in found]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """All of them at once: most of the time goes into waiting for the three Prometheus to take up their targets."""
    needs_program("prometheus", "promtool", "prometheus-alertmanager", "amtool")
    folder = tmp_path_factory.mktemp("scraped")
    with ExitStack() as stack:
        scraper, bridged, systemd_host, compose_host = (stack.enter_context(host()) for _ in range(4))
        shown = yaml_of(documented(BRIDGED, "yaml"))
        jobs = [*(_job(number, deployment) for number, deployment in enumerate(DEPLOYMENTS)), *shown["scrape_configs"]]
        jobs += [{"job_name": name, "static_configs": [{"targets": [name]}]} for name in NAMED_TARGETS]
        scraper.write(
            "/etc/hosts", _hosts_file(shown["services"]["prometheus"]["extra_hosts"]) + _names_of_deployments()
        )
        _run_prometheus(stack, scraper, folder, jobs)
        _run_systemd_units(stack, systemd_host, folder)
        _run_compose_services(stack, compose_host, folder)
        _bridge(bridged, scraper)
        run(stack, bridged, systemd(BRIDGED, [], documented(BRIDGED, "toml")), folder / "bridged.log")
        for number, deployment in enumerate(DEPLOYMENTS):
            place = stack.enter_context(host())
            join(place, f"10.77.{number}.1/30", scraper, f"10.77.{number}.2/30", f"wire{number}")
            run(stack, place, deployment, folder / f"{number}.log")
        expected = {job["job_name"]: len(job["static_configs"]) for job in jobs}
        yield Scraped(
            wait_until_up(scraper, expected, "every target is up"),
            wait_until_up(
                systemd_host, dict.fromkeys(AGENT_JOBS, 1), "every dialect is up on the host of the systemd units"
            ),
            wait_until_up(
                compose_host, dict.fromkeys(AGENT_JOBS, 1), "every dialect is up on the host of the compose services"
            ),
        )


def _job(number: int, deployment: Deployment) -> dict[str, Any]:
    return {
        "job_name": deployment.name,
        "static_configs": [
            {"targets": [f"10.77.{number}.1:{port}"], "labels": {"__metrics_path__": path}}
            for port, path in deployment.targets
        ],
    }


def _hosts_file(extra_hosts: Sequence[str]) -> str:
    """The effect of Docker's `extra_hosts`: host-gateway is the address of the default bridge."""
    pairs = (entry.replace("host-gateway", GATEWAY).rpartition(":") for entry in extra_hosts)
    return "".join(f"{address} {name}\n" for name, _, address in pairs)


def _names_of_deployments() -> str:
    numbers = {deployment.name: number for number, deployment in enumerate(DEPLOYMENTS)}
    pairs = ((target.rpartition(":")[0], numbers[name]) for target, name in NAMED_TARGETS.items())
    return "".join(f"10.77.{number}.1 {name}\n" for name, number in pairs)


def _run_prometheus(stack: ExitStack, place: Host, folder: Path, jobs: Sequence[Mapping[str, Any]]) -> None:
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump({"global": PACE, "scrape_configs": jobs}))
    command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
    stack.enter_context(place.running([*command, f"--web.listen-address={PROMETHEUS}"], folder / "prometheus.log"))


def _run_systemd_units(stack: ExitStack, place: Host, folder: Path) -> None:
    """The agent's unit as shipped, on loopback, and the stack's, which runs a Prometheus."""
    pace = f"[stack]\nscrape_interval_s = {STACK.scrape_interval_s}\nds01_interval_s = {STACK.ds01_interval_s}\n"
    agent = systemd("systemd", [], pace)
    run(stack, place, agent, folder / "systemd.log")
    run(stack, place, replace(agent, command=unit_command("gpucommons-stack.service")), folder / "stack.log")


def _run_compose_services(stack: ExitStack, place: Host, folder: Path) -> None:
    """Agent and Prometheus with the commands of deploy/compose.yaml, where they share the host's network."""
    agent = Deployment("compose", [*image("ENTRYPOINT"), *compose_service("agent")["command"]], [])
    run(stack, place, agent, folder / "compose.log")
    for path, text in STACK_FILES.items():
        place.write(str(LAYOUT.config / path), text)
    prometheus = ["prometheus", *compose_service("prometheus")["command"]]
    stack.enter_context(place.running(prometheus, folder / "compose-prometheus.log"))


def _bridge(place: Host, container: Host) -> None:
    """Docker's two bridges on a host; the container is on the second and reaches the first through its gateway."""
    for name, address in (("docker0", GATEWAY), ("br-ds01", NETWORK_GATEWAY)):
        place.ip(f"link add {name} type bridge", f"address add {address}/16 dev {name}", f"link set {name} up")
    place.ip(f"link add veth-ds01 type veth peer name eth0 netns {container.pid}")
    place.ip("link set veth-ds01 master br-ds01", "link set veth-ds01 up")
    container.ip(f"address add {CONTAINER}/16 dev eth0", "link set eth0 up", f"route add default via {NETWORK_GATEWAY}")


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment.name)
def test_every_target_of_a_deployment_is_up(scraped: Scraped, deployment: Deployment) -> None:
    found = scraped.from_elsewhere[deployment.name]
    assert len(found) == len(deployment.targets)
    assert [verdict for verdict in verdicts(found) if verdict[1] != "up"] == []


@pytest.mark.parametrize("target", DS01_TARGETS)
def test_ds01s_prometheus_in_a_docker_network_reaches_the_agent(scraped: Scraped, target: str) -> None:
    found = [verdict for job in scraped.from_elsewhere.values() for verdict in verdicts(job)]
    assert (f"http://{target}/metrics", "up", "") in found


@pytest.mark.parametrize("target", NAMED_TARGETS)
def test_a_target_is_up_under_the_name_that_its_peers_use(scraped: Scraped, target: str) -> None:
    assert verdicts(scraped.from_elsewhere[target]) == [(f"http://{target}/metrics", "up", "")]


@pytest.mark.parametrize("job", AGENT_JOBS)
def test_the_units_of_systemd_serve_their_own_host(scraped: Scraped, job: str) -> None:
    assert verdicts(scraped.by_systemd[job]) == [(f"http://127.0.0.1:9460{AGENT_JOBS[job]}", "up", "")]


@pytest.mark.parametrize("job", AGENT_JOBS)
def test_the_services_of_compose_serve_their_own_host(scraped: Scraped, job: str) -> None:
    assert verdicts(scraped.by_compose[job]) == [(f"http://127.0.0.1:9460{AGENT_JOBS[job]}", "up", "")]


def test_the_firewall_for_ds01_lets_containers_in_and_other_hosts_not(tmp_path: Path) -> None:
    needs_program("iptables")
    with host() as place, host() as container, host() as outside, ExitStack() as stack:
        _bridge(place, container)
        join(place, "10.77.0.1/30", outside, "10.77.0.2/30", "wire")
        run(stack, place, systemd("DS01", [], **ds01_environment()), tmp_path / "log")

        def answers(asker: Host, address: str, timeout_s: float = 20) -> bool:
            try:
                return asker.get(f"{address}:9101", "/metrics", timeout_s=timeout_s)[0] == 200
            except OSError:
                return False

        until(lambda: answers(outside, "10.77.0.1"), "open to every host before there is a firewall")
        for line in documented(BRIDGED, "sh").splitlines():
            subprocess.run(["nsenter", f"--target={place.pid}", "--net", *shlex.split(line)], check=True, timeout=30)
        assert answers(container, GATEWAY)
        assert answers(place, "127.0.0.1")
        assert not answers(outside, "10.77.0.1", timeout_s=3)


def test_every_settings_file_is_where_its_command_looks_for_it() -> None:
    for deployment in DEPLOYMENTS:
        if "--config" in deployment.command:
            assert deployment.command[deployment.command.index("--config") + 1] == SETTINGS
            assert SETTINGS in deployment.files
