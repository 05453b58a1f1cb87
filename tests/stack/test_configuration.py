"""The configuration of Prometheus and Alertmanager, checked by their tools and against the settings."""

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from certificates import Authority
from gpucommons.config.stack import StackSettings
from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.stack.check import StackError, check_directory
from gpucommons.stack.prometheus import (
    AlertmanagerSecrets,
    Layout,
    alertmanager_config,
    cluster_config,
    duration,
    prometheus_flags,
    scraped_dialects,
)
from gpucommons.stack.render import to_yaml, write
from needs import needs_program
from prometheus_server import running_alertmanager
from receivers import hook
from stack.stacks import settings_on_free_ports, stack_in
from waiting import until

NO_SECRETS = AlertmanagerSecrets(None, "", "", "", "")


def full_settings(tmp_path: Path) -> StackSettings:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    ca = Authority(tmp_path).file
    url = tmp_path / "url"
    url.write_text("http://127.0.0.1:9/hook?key=hidden\n")
    return settings_on_free_ports(
        remote_write_url="http://127.0.0.1:8428/api/v1/write",
        remote_write_token_file=str(secret),
        agents_ca_file=str(ca),
        agents_username="prometheus",
        agents_password_file=str(secret),
        smtp_smarthost="mail.example.org:587",
        smtp_from="gpus@example.org",
        smtp_username="gpus",
        smtp_password_file=str(secret),
        email_to="a@example.org, b@example.org",
        webhook_url_file=str(url),
        webhook_token_file=str(secret),
        rules_dir=str(tmp_path / "site"),
    )


def loaded(files: dict[str, str], name: str) -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load(files[name])
    return value


@pytest.mark.parametrize("with_grafana", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_the_tools_accept_the_configuration(tmp_path: Path, with_grafana: bool, full: bool) -> None:
    needs_program("promtool", "amtool")
    settings = full_settings(tmp_path) if full else settings_on_free_ports()
    write(stack_in(tmp_path / "data", settings).files(with_grafana), tmp_path / "config")
    assert check_directory(tmp_path / "config") == []


def test_each_dialect_is_scraped_at_the_interval_its_users_expect(tmp_path: Path) -> None:
    prometheus = loaded(stack_in(tmp_path).files(with_grafana=True), "prometheus/prometheus.yml")
    jobs = {job["job_name"]: job for job in prometheus["scrape_configs"]}
    scraped = scraped_dialects(StackSettings())
    assert set(jobs) == {*scraped, "prometheus", "alertmanager", "grafana"}
    assert scraped == tuple(dialect.name for dialect in DIALECTS if dialect.on_main)
    asked_for = set(scraped_dialects(StackSettings(nodeexporter=True)))
    assert asked_for == {dialect.name for dialect in DIALECTS} - {"nvidiasmi", "xpushare"}
    for name in scraped:
        assert jobs[name]["metrics_path"] == f"/metrics/{name}"
        assert jobs[name]["scrape_interval"] == ("30s" if name == "ds01" else "15s")


def test_everything_binds_to_loopback_and_keeps_a_week(tmp_path: Path) -> None:
    shipped = StackSettings()
    for address in (shipped.prometheus_listen, shipped.alertmanager_listen, shipped.grafana_listen, shipped.agent):
        assert address.startswith("127.0.0.1:")
    flags = prometheus_flags(shipped, Layout(tmp_path))
    assert {"--storage.tsdb.retention.time=7d", "--storage.tsdb.retention.size=20GB"} <= set(flags)


def test_routing_is_by_severity(tmp_path: Path) -> None:
    route = alertmanager_config(StackSettings(), NO_SECRETS)["route"]
    by_receiver = {branch["receiver"]: branch for branch in route["routes"]}
    assert by_receiver["critical"]["group_wait"] == "0s"
    repeats = {name: branch["repeat_interval"] for name, branch in by_receiver.items()}
    assert repeats == {"critical": "3600s", "warning": "14400s", "info": "86400s"}
    assert route["receiver"] == "warning", "an alert without a severity is not lost"


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [(["severity=critical"], "critical"), (["severity=info"], "info"), (["team=x"], "warning")],
)
def test_amtool_routes_as_written(tmp_path: Path, labels: list[str], receiver: str) -> None:
    needs_program("amtool")
    file = tmp_path / "alertmanager.yml"
    file.write_text(to_yaml(alertmanager_config(StackSettings(), NO_SECRETS)))
    command = ["amtool", "config", "routes", "test", f"--config.file={file}", f"--verify.receivers={receiver}", *labels]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_secret_is_only_where_its_program_reads_it(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data")
    files = stack_in(layout.root, full_settings(tmp_path)).files(with_grafana=True)
    holding = {name for name, text in files.items() if "s3cret" in text}
    assert holding == {
        "prometheus/token",
        "prometheus/agents_password",
        "alertmanager/token",
        "alertmanager/smtp_password",
    }
    assert all(files[name] == "s3cret" for name in holding), "without the line end that an editor adds"
    assert [name for name, text in files.items() if "hidden" in text] == ["alertmanager/alertmanager.yml"]
    alertmanager = loaded(files, "alertmanager/alertmanager.yml")
    assert alertmanager["global"]["smtp_auth_password_file"] == str(layout.config / "alertmanager/smtp_password")
    assert alertmanager["global"]["smtp_require_tls"] is True
    for receiver in alertmanager["receivers"]:
        assert [mail["to"] for mail in receiver["email_configs"]] == ["a@example.org", "b@example.org"]
        assert receiver["webhook_configs"][0]["url"] == "http://127.0.0.1:9/hook?key=hidden"
    write(files, tmp_path / "config")
    for file in (path for path in (tmp_path / "config").rglob("*") if path.is_file()):
        assert file.stat().st_mode & 0o077 == 0, "files with secrets are not readable by others"


def with_teams(tmp_path: Path) -> StackSettings:
    url = tmp_path / "teams"
    url.write_text("https://workflows.example.org/invoke?sig=hidden\n")
    return settings_on_free_ports(teams_webhook_url_file=str(url))


def test_every_severity_goes_to_teams_and_the_url_is_only_in_its_file(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data")
    files = stack_in(layout.root, with_teams(tmp_path)).files(with_grafana=True)
    secret = "alertmanager/teams_webhook_url"
    assert [name for name, text in files.items() if "hidden" in text] == [secret]
    assert files[secret] == "https://workflows.example.org/invoke?sig=hidden"
    receivers = loaded(files, "alertmanager/alertmanager.yml")["receivers"]
    assert [receiver["name"] for receiver in receivers] == ["critical", "warning", "info"]
    for receiver in receivers:
        (teams,) = receiver["msteamsv2_configs"]
        assert teams["webhook_url_file"] == str(layout.config / secret)
        assert teams["send_resolved"] is True
    assert all(
        "msteamsv2_configs" not in receiver
        for receiver in alertmanager_config(StackSettings(), NO_SECRETS)["receivers"]
    )


def test_slack_gets_every_alert_with_its_summary_and_colour(tmp_path: Path) -> None:
    """The real Alertmanager posts to a server that takes the place of Slack, or of Mattermost, which has its format."""
    with hook() as (slack, address):
        url = tmp_path / "slack"
        url.write_text(f"{address}/hooks/hidden\n")
        layout = Layout(tmp_path / "data")
        settings = settings_on_free_ports(slack_webhook_url_file=str(url))
        files = stack_in(layout.root, settings).files(with_grafana=False)
        assert [name for name, text in files.items() if "hidden" in text] == ["alertmanager/slack_webhook_url"]
        write(files, layout.config)
        with running_alertmanager(files["alertmanager/alertmanager.yml"], tmp_path) as server:
            labels = {"alertname": "GPUCommonsGPULost", "severity": "critical", "node": "n", "gpu_uuid": "GPU-3"}
            texts = {"summary": "n has lost GPU 3", "description": "Its jobs failed."}
            server.send({"labels": labels, "annotations": texts})
            until(lambda: slack.bodies, "a message", within_s=30)
    (message,) = slack.bodies[0]["attachments"]
    assert message["title"] == "FIRING: GPUCommonsGPULost (critical)"
    assert message["text"] == "*n has lost GPU 3*\nIts jobs failed.\n"
    assert message["color"] == "danger"


def test_an_alertmanager_that_is_too_old_for_teams_is_named(tmp_path: Path) -> None:
    needs_program("promtool", "amtool")
    version = subprocess.run(["amtool", "--version"], capture_output=True, text=True, timeout=60)
    is_old = re.search(r"version 0\.(\d+)", version.stdout + version.stderr)
    assert is_old is not None
    write(stack_in(tmp_path / "data", with_teams(tmp_path)).files(with_grafana=False), tmp_path / "config")
    found = [problem.message for problem in check_directory(tmp_path / "config")]
    if int(is_old[1]) >= 28:
        assert found == []
    else:
        (message,) = found
        assert "older than 0.28" in message
        assert "stack.teams_webhook_url_file" in message


@pytest.mark.parametrize(
    "key",
    [
        "teams_webhook_url_file",
        "smtp_password_file",
        "webhook_url_file",
        "webhook_token_file",
        "remote_write_token_file",
        "agents_ca_file",
        "agents_password_file",
    ],
)
def test_a_secret_that_is_missing_or_empty_is_named(tmp_path: Path, key: str) -> None:
    full = full_settings(tmp_path)
    empty = tmp_path / "empty"
    empty.touch()
    for wrong, says in ((str(tmp_path / "nowhere"), "nowhere"), (str(empty), "is empty")):
        changed = replace(full, **{key: wrong})  # type: ignore[arg-type]
        with pytest.raises(StackError, match=says) as caught:
            stack_in(tmp_path, changed).files(with_grafana=False)
        assert f"stack.{key}" in str(caught.value)


def test_writing_leaves_no_stale_rule_file_behind(tmp_path: Path) -> None:
    write({"rules/a.yml": "a", "rules/b.yml": "b"}, tmp_path / "c")
    write({"rules/b.yml": "new"}, tmp_path / "c")
    assert {str(p.relative_to(tmp_path / "c")) for p in (tmp_path / "c").rglob("*.yml")} == {"rules/b.yml"}
    assert (tmp_path / "c/rules/b.yml").read_text() == "new"


def test_the_configuration_inside_a_cluster_finds_the_agents(tmp_path: Path) -> None:
    """Debian's Prometheus is built without Kubernetes discovery; VictoriaMetrics' agent supports it."""
    needs_program("vmagent")
    file = tmp_path / "prometheus.yml"
    config = cluster_config(StackSettings(), "/etc/prometheus-rules/*.yml")
    scraping = {"scrape_configs": config["scrape_configs"]}
    file.write_text(to_yaml(scraping))
    command = ["vmagent", f"-promscrape.config={file}", "-promscrape.config.strictParse", "-dryRun"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    file.write_text(file.read_text().replace("kubernetes_sd_configs", "kubernets_sd_configs"))
    assert subprocess.run(command, capture_output=True, timeout=60).returncode != 0, "an invalid file is refused"


@pytest.mark.parametrize(("seconds", "text"), [(15.0, "15s"), (0.5, "500ms"), (3600, "3600s"), (0.0, "0s")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
