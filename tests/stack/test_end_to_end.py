"""End to end with the real programs: two simulated nodes, Prometheus, Alertmanager, mail, webhook, VictoriaMetrics.

Everything is as shipped except for the pace: intervals are short, and the durations of the rules are divided by 100.
"""

import json
import os
import signal
import ssl
import subprocess
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from certificates import Authority
from dashboards.may_be_empty import MAY_BE_EMPTY
from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.stack import render
from gpucommons.stack.health import HttpResponse, get
from gpucommons.stack.local import LocalEngine
from gpucommons.stack.process import read_pid_file
from gpucommons.stack.prometheus import NotificationTiming, alertmanager_config
from needs import needs_program
from prometheus_server import free_port
from receivers import PASSWORD, TOKEN, USER, Hook, Mailbox, hook, mailbox
from running import RunningAgent, running_agent
from stack.promql import panel_queries, rules
from stack.stacks import settings_on_free_ports, stack_in
from stack.time_lapse import time_lapse
from waiting import until

pytestmark = pytest.mark.long

FACTOR = 100
QUICK = NotificationTiming(0.0, 1.0, 1.5, 1.0)


@dataclass(frozen=True)
class Api:
    """A server with Prometheus's query API."""

    address: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        answer = get(f"http://{self.address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}", 10)
        assert isinstance(answer, HttpResponse), answer
        assert answer.status == 200, f"{expression}: {answer.body.decode()}"
        result: list[dict[str, Any]] = json.loads(answer.body)["data"]["result"]
        return result


@dataclass(frozen=True)
class Site:
    root: Path
    prometheus: Api
    victoria: Api
    alertmanager: str
    engine: LocalEngine
    nodes: Mapping[str, RunningAgent]
    mail: Mailbox
    hook: Hook

    def alerts(self) -> list[dict[str, Any]]:
        answer = get(f"http://{self.alertmanager}/api/v2/alerts")
        assert isinstance(answer, HttpResponse), answer
        found: list[dict[str, Any]] = json.loads(answer.body)
        return found

    def alert(self, name: str, **labels: str) -> dict[str, Any] | None:
        expected = {"alertname": name, **labels}.items()
        return next((alert for alert in self.alerts() if expected <= alert["labels"].items()), None)

    def sent(self, **labels: str) -> set[str]:
        """The names of the alerts with these labels that fire and are not muted."""
        return {
            alert["labels"]["alertname"]
            for alert in self.alerts()
            if alert["status"]["state"] == "active" and labels.items() <= alert["labels"].items()
        }


def until_each_has_data(api: Api, names: Mapping[str, str]) -> None:
    """Waits until each expression has had data, and names those that have not.

    Each is asked until it has some. They need not have it at one moment: on a busy machine a scrape now and then takes
    longer than its interval, which ends the series of that target until the next one.
    """
    left = dict(names)
    deadline = time.monotonic() + 100
    while True:
        left = {expression: name for expression, name in left.items() if not api.query(expression)}
        if not left:
            return
        assert time.monotonic() < deadline, f"without data: {sorted(left.values())}"
        time.sleep(0.5)


@contextmanager
def running_victoria(data: Path) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    command = ["victoria-metrics", f"-storageDataPath={data}", f"-httpListenAddr={address}", "-search.latencyOffset=0s"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: isinstance(get(f"http://{address}/health"), HttpResponse), "VictoriaMetrics answers")
        yield address
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    needs_program("prometheus", "promtool", "prometheus-alertmanager", "amtool", "victoria-metrics")
    root = tmp_path_factory.mktemp("site")
    authority = Authority(root)
    pair = authority.issue("mail", "localhost")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.cert_file, pair.key_file)
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        state = {"STATE_DIRECTORY": str(root)}
        nodes = {}
        # The GPUs of the second node have no price.
        for name, price in (("lab", "2"), ("faults", '{ "*H100*" = 2 }')):
            config = root / f"{name}.toml"
            config.write_text(f"[accounts]\nprice_per_gpu_hour = {price}\n")
            given = ("--simulate", name, "--config", str(config))
            nodes[name] = stack.enter_context(running_agent(*given, environment=state))
        lab, faults = (node.url for node in nodes.values())
        victoria = stack.enter_context(running_victoria(root / "victoria"))
        mail, smarthost = stack.enter_context(mailbox(tls=tls))
        alerts, url = stack.enter_context(hook(TOKEN))
        for name, text in (("password", PASSWORD), ("token", TOKEN), ("url", url)):
            (root / name).write_text(f"{text}\n")
        (root / "targets").mkdir()
        # The second node is listed in a file, as the nodes of a fleet.
        targets = [{"targets": [faults.removeprefix("http://")], "labels": {"node": "faults"}}]
        (root / "targets" / "fleet.yml").write_text(json.dumps(targets))
        settings = settings_on_free_ports(
            node="lab",
            agent=lab.removeprefix("http://"),
            scrape_interval_s=1.0,
            ds01_interval_s=1.0,
            targets_dir=str(root / "targets"),
            remote_write_url=f"http://{victoria}/api/v1/write",
            smtp_smarthost=smarthost,
            smtp_from="gpus@example.org",
            smtp_username=USER,
            smtp_password_file=str(root / "password"),
            email_to="admin@example.org",
            webhook_url_file=str(root / "url"),
            webhook_token_file=str(root / "token"),
        )
        packaged = render.read_packaged
        patch.setattr(
            render,
            "read_packaged",
            lambda folder, suffix: ((name, time_lapse(text, FACTOR)) for name, text in packaged(folder, suffix)),
        )
        patch.setattr(render, "alertmanager_config", partial(alertmanager_config, timing=QUICK))
        # Alertmanager uses the system's authorities for the mail server; here, ours.
        patch.setenv("SSL_CERT_FILE", str(authority.file))
        engine = LocalEngine(stack_in(root / "stack", settings))
        stack.callback(engine.stop)
        engine.start()
        apis = Api(settings.prometheus_listen), Api(victoria)
        yield Site(root / "stack", *apis, settings.alertmanager_listen, engine, nodes, mail, alerts)


def test_every_target_is_up(site: Site) -> None:
    until(lambda: all(health.ok for health in site.engine.status()), "all is healthy")
    up = {(row["metric"]["job"], row["metric"]["node"]) for row in site.prometheus.query("up == 1")}
    scraped = [dialect.name for dialect in DIALECTS if dialect.on_main]
    assert up == {(name, node) for name in scraped for node in ("lab", "faults")} | {
        ("prometheus", "lab"),
        ("alertmanager", "lab"),
    }


def thread_states(pid: int) -> set[str]:
    stats = (task.joinpath("stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir())
    return {stat.rpartition(") ")[2].split()[0] for stat in stats}


def test_an_open_port_without_answers_is_down(site: Site) -> None:
    process = read_pid_file(site.root / "run" / "alertmanager.pid")
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    try:
        until(lambda: thread_states(process.pid) == {"T"}, "every thread has stopped")
        healths = {health.service: health.ok for health in site.engine.status()}
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert healths["alertmanager"] is False
    assert healths["prometheus"] is True


def recorded_series() -> dict[str, str]:
    return {rule.name: rule.name for rule in rules() if rule.kind == "record"}


def test_every_recording_rule_has_data(site: Site) -> None:
    until_each_has_data(site.prometheus, recorded_series())


def test_a_fault_is_sent_grouped_and_mutes_lesser_alerts(site: Site) -> None:
    critical = until(
        lambda: site.alert("DS01GPUCriticalTemperature", node="faults"), "the hot GPU's alert is in Alertmanager"
    )
    assert critical["labels"]["severity"] == "critical"
    uuid = critical["labels"]["gpu_uuid"]
    assert site.alert("DS01GPUCriticalTemperature", node="lab") is None, "the lab's GPUs are healthy"

    def muted(name: str) -> Any:
        alert = site.alert(name, node="faults", gpu_uuid=uuid)
        return alert and alert["status"]["inhibitedBy"] and alert["status"]["state"] == "suppressed"

    until(lambda: muted("DS01GPUHighTemperature"), "the same GPU's warning is inhibited")
    until(lambda: muted("GPUCommonsGPUThrottled"), "and what heat does to its clocks")

    until(lambda: site.hook.groups("DS01GPUCriticalTemperature"), "the webhook is called")
    (alert,) = site.hook.groups("DS01GPUCriticalTemperature")[0]["alerts"]
    assert alert["status"] == "firing"
    assert alert["annotations"]["summary"].startswith("GPU 1 of faults is close to its thermal limit: 91 C")

    until(lambda: [s for s in site.mail.subjects if "DS01GPUCriticalTemperature" in s], "an email arrives")
    assert "GPU 1 of faults is close to its thermal limit: 91 C" in site.mail.body("DS01GPUCriticalTemperature")
    first = site.mail.mails[0]
    assert (first["From"], first["To"]) == ("gpus@example.org", "admin@example.org")

    # An alert of lower severity on another GPU is sent. Two codes are one message.
    def both_codes() -> list[dict[str, Any]]:
        posts = site.hook.groups("GPUCommonsXIDApplication")
        return [post for post in posts if {alert["labels"]["xid"] for alert in post["alerts"]} == {"31", "45"}]

    (post, *_) = until(both_codes, "two XIDs of one node are one message")
    assert post["groupLabels"] == {"alertname": "GPUCommonsXIDApplication", "node": "faults"}
    assert post["receiver"] == "info"

    until(lambda: site.alert("GPUCommonsGPULost", node="faults"), "the GPU that fell off the bus is missed")
    until(lambda: [s for s in site.mail.subjects if "GPUCommonsGPULost" in s], "and an email says so")
    assert not site.hook.groups("DS01GPUHighTemperature"), "an inhibited alert is not sent"
    assert not [subject for subject in site.mail.subjects if "DS01GPUHighTemperature" in subject]


def panels_of_a_user(api: Api) -> dict[str, str]:
    """The queries of all panels that must have data, as Grafana sends them for a user who has containers."""
    (first, *_) = until(lambda: api.query("topk(1, ds01_user_containers_count)"), "a user is scraped")
    chosen = {"node": ".*", "gpu": ".*", "user": first["metric"]["user"]}
    return {
        query.with_values(**chosen): f"{query.dashboard}: {query.panel}"
        for query in panel_queries()
        if (query.dashboard, query.panel) not in MAY_BE_EMPTY
    }


def test_every_panel_shows_data(site: Site) -> None:
    until_each_has_data(site.prometheus, panels_of_a_user(site.prometheus))


def test_victoria_metrics_answers_the_same_queries(site: Site) -> None:
    """It has what Prometheus has sent, which comes some seconds later, recorded series included."""
    until_each_has_data(site.victoria, panels_of_a_user(site.prometheus) | recorded_series())


def test_a_gpu_that_fell_off_the_bus_is_one_alert(site: Site) -> None:
    """XID 79, whose series there is, and the loss of the GPU."""
    lost = until(lambda: site.alert("GPUCommonsGPULost", node="faults"), "the GPU is missed")
    uuid = lost["labels"]["gpu_uuid"]
    assert site.prometheus.query(f'gpucommons_gpu_xid_errors_total{{node="faults",uuid="{uuid}",xid="79"}} > 0')
    until(lambda: site.sent(node="faults", gpu_uuid=uuid) == {"GPUCommonsGPULost"}, "one alert")
    posts = (post for name in ("GPUCommonsXIDCritical", "DS01GPUXIDError") for post in site.hook.groups(name))
    assert not [alert for post in posts for alert in post["alerts"] if alert["labels"]["gpu_uuid"] == uuid]


def test_a_dead_node_is_one_alert(site: Site) -> None:
    """The last test that has the node: none of its dialects can be scraped any more."""
    dialects = sum(dialect.on_main for dialect in DIALECTS)
    until(lambda: len(site.prometheus.query('up{node="faults"} == 1')) == dialects, "each dialect is scraped")
    site.nodes["faults"].stop(signal.SIGKILL)
    # Each alert that this raises has been raised when all targets have been down for longer than its time.
    down = 'max_over_time(up{node="faults"}[6s]) == 0'
    until(lambda: len(site.prometheus.query(down)) == dialects, "all of them are down", within_s=60)
    until(lambda: site.sent(node="faults") == {"GPUCommonsAgentDown"}, "one alert for the node", within_s=120)
    assert "GPUCommonsAgentDown" not in site.sent(node="lab")


def test_the_list_of_panels_that_may_be_empty_names_panels_that_exist() -> None:
    assert set(MAY_BE_EMPTY) <= {(query.dashboard, query.panel) for query in panel_queries()}
    assert all(MAY_BE_EMPTY.values())
