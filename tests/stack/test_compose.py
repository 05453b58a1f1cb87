"""The compose file, checked by docker-compose; and the engine with a docker that only records its arguments."""

import os
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpucommons.base.address import parse_unix_address
from gpucommons.config.runtime_directory import served_socket
from gpucommons.config.stack import StackSettings
from gpucommons.stack.check import StackError
from gpucommons.stack.compose import ComposeEngine, choose_engine
from gpucommons.stack.compose_file import ComposeHost, compose_file
from gpucommons.stack.prometheus import Layout
from gpucommons.stack.render import ensure_password, to_yaml
from needs import needs_program
from stack.stacks import settings_on_free_ports, stack_in
from stack.test_check import BROKEN

LAYOUT = Layout(Path("/var/lib/gpucommons/stack"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "has_gpus"),
    [
        (StackSettings(), False),
        (
            StackSettings(
                run_agent=True,
                grafana_root_url="https://gpus.example.org/",
                rules_dir="/etc/gpucommons/rules",
                targets_dir="/etc/gpucommons/targets",
            ),
            True,
        ),
    ],
)
def test_docker_compose_accepts_the_file(tmp_path: Path, settings: StackSettings, has_gpus: bool) -> None:
    needs_program("docker-compose")
    file = tmp_path / "compose.yaml"
    file.write_text(to_yaml(compose_file(settings, LAYOUT, ComposeHost("1000:1000", has_gpus))))
    command = ["docker-compose", "--file", str(file), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    file.write_text(file.read_text().replace("network_mode", "network_mood"))
    assert subprocess.run(command, capture_output=True, timeout=60).returncode != 0, "an invalid file is refused"


def test_no_service_is_root_or_open_to_the_network() -> None:
    services = compose_file(StackSettings(), LAYOUT, ComposeHost("1000:1000", False))["services"]
    assert set(services) == {"prometheus", "alertmanager", "grafana"}
    for service in services.values():
        assert service["user"] == "1000:1000"
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True
        assert service["network_mode"] == "host"
        assert "ports" not in service
        assert ":latest" not in service["image"]
    for name, others in (("grafana", ("alertmanager", "prometheus")), ("prometheus", ("alertmanager", "secrets"))):
        for volume in services[name]["volumes"]:
            assert not any(f"/{other}" in volume.partition(":")[0] for other in others), "only its own secrets"
    listens = [flag for name in ("prometheus", "alertmanager") for flag in services[name]["command"]]
    assert "--web.listen-address=127.0.0.1:9090" in listens
    assert "--web.listen-address=127.0.0.1:9093" in listens
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


def test_the_agents_socket_is_where_the_commands_of_the_host_look() -> None:
    agent = compose_file(StackSettings(run_agent=True), LAYOUT, ComposeHost("1000:1000", False))["services"]["agent"]
    directory = str(Path(parse_unix_address(served_socket("auto", {}, uid=0)).path).parent)
    assert f"{directory}:{directory}" in agent["volumes"]


def test_the_password_is_generated_and_shown_once_with_mode_0600(tmp_path: Path) -> None:
    file = tmp_path / "secrets" / "grafana"
    made = ensure_password(file, None)
    assert made is not None
    assert len(made) >= 20
    assert file.read_text() == made
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert ensure_password(file, None) is None, "the second start does not show it"
    assert file.read_text() == made
    assert ensure_password(tmp_path / "other", None) != made
    assert ensure_password(file, "chosen by the operator") is None
    assert file.read_text() == "chosen by the operator"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


_DOCKER = """#!/bin/sh
echo "docker $*" >> "$DOCKER_NOTES"
case "$*" in
    *"compose version"*|*"version --format"*) exit "${DOCKER_ANSWERS:-0}";;
    *" up "*) echo "its progress"; exit "${DOCKER_UP:-0}";;
    *" logs "*) echo "its logs";;
esac
"""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A docker that only records its arguments."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "docker").write_text(_DOCKER)
    (programs / "docker").chmod(0o755)
    file = tmp_path / "notes"
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_NOTES", str(file))
    monkeypatch.delenv("GRAFANA_ADMIN_PASSWORD", raising=False)
    return lambda: file.read_text().splitlines() if file.exists() else []


def test_compose_is_chosen_if_docker_answers(notes: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_engine("auto") == "compose"
    assert choose_engine("local") == "local"
    monkeypatch.setenv("DOCKER_ANSWERS", "1")
    assert choose_engine("auto") == "local"
    monkeypatch.setenv("PATH", "/nonexistent")
    assert choose_engine("auto") == "local"
    assert choose_engine("compose") == "compose", "a set engine is used"


def test_only_the_logs_of_docker_are_output(
    tmp_path: Path, notes: Callable[[], list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    needs_program("promtool", "amtool")
    engine = ComposeEngine(stack_in(tmp_path / "data"))
    engine.start()
    assert capfd.readouterr() == ("", "its progress\n"), "with --json, stdout has the document alone"
    engine.logs(None, 5, follow=False)
    assert capfd.readouterr() == ("its logs\n", "")


def test_start_reload_and_stop(tmp_path: Path, notes: Callable[[], list[str]]) -> None:
    needs_program("promtool", "amtool")
    said: list[str] = []
    root = tmp_path / "data"
    engine = ComposeEngine(stack_in(root, settings_on_free_ports(), said))
    engine.stop()
    assert said == ["nothing is running"]
    engine.start()
    file = root / "config" / "compose.yaml"
    assert f"docker compose --project-name gpucommons --file {file} up --detach --remove-orphans" in notes()
    assert set(yaml.safe_load(file.read_text())["services"]) == set(engine.services)
    assert any(line.startswith("grafana: http://127.0.0.1:") for line in said)
    password = (root / "secrets" / "grafana_admin_password").read_text()
    assert [line for line in said if password in line], "shown at the first start"
    assert not any(password in path.read_text() for path in (root / "config").rglob("*") if path.is_file())
    assert not any(password in line for line in notes())
    assert (root / "config" / "grafana" / "datasources" / "prometheus.yml").exists()

    said.clear()
    engine.start()
    assert not [line for line in said if password in line], "and not again"
    engine.reload()
    engine.logs("grafana", 10, follow=False)
    engine.update()
    engine.stop()
    calls = "\n".join(notes())
    for call in (
        "kill -s SIGHUP prometheus alertmanager",
        "logs --tail 10 grafana",
        "pull prometheus alertmanager grafana",
        "down",
    ):
        assert call in calls
    assert (root / "secrets" / "grafana_admin_password").exists(), "stopping keeps data and secrets"


def test_the_operators_password_and_names_are_used(
    tmp_path: Path, notes: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_program("promtool", "amtool")
    monkeypatch.setenv("GRAFANA_ADMIN_PASSWORD", "of my own")
    said: list[str] = []
    settings = settings_on_free_ports(grafana_admin_user="boss", grafana_root_url="https://g.example.org/")
    ComposeEngine(stack_in(tmp_path / "data", settings, said)).start()
    assert (tmp_path / "data/secrets/grafana_admin_password").read_text() == "of my own"
    assert not any("of my own" in line for line in said)
    grafana = yaml.safe_load((tmp_path / "data/config/compose.yaml").read_text())["services"]["grafana"]
    assert grafana["environment"]["GF_SECURITY_ADMIN_USER"] == "boss"
    assert grafana["environment"]["GF_SERVER_ROOT_URL"] == "https://g.example.org/"


def test_an_invalid_rule_file_is_refused_before_docker_runs(tmp_path: Path, notes: Callable[[], list[str]]) -> None:
    needs_program("promtool", "amtool")
    site = tmp_path / "site"
    site.mkdir()
    (site / "mine.yml").write_text(BROKEN["a key that does not exist"][0])
    settings = settings_on_free_ports(rules_dir=str(site))
    for act in ("start", "reload", "update"):
        engine = ComposeEngine(stack_in(tmp_path / "data", settings))
        with pytest.raises(StackError, match=r"mine\.yml:6"):
            getattr(engine, act)()
    assert all(call.startswith(("docker compose version", "docker version ")) for call in notes())


def test_without_the_tools_the_images_check(
    tmp_path: Path, notes: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    monkeypatch.setattr("gpucommons.stack.compose.tools_missing", lambda: ["promtool", "amtool"])
    assert ComposeEngine(stack_in(tmp_path / "data")).check() == []
    promtool, amtool = notes()
    assert "--network none" in promtool
    assert "--entrypoint promtool docker.io/prom/prometheus:" in promtool
    assert "--entrypoint amtool docker.io/prom/alertmanager:" in amtool


def test_a_failure_of_docker_is_reported(
    tmp_path: Path, notes: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_program("promtool", "amtool")
    monkeypatch.setenv("DOCKER_UP", "17")
    with pytest.raises(StackError, match="failed with status 17"):
        ComposeEngine(stack_in(tmp_path / "data", settings_on_free_ports())).start()


@pytest.mark.parametrize("verb", ["start", "reload", "update", "check", "build"])
def test_without_docker_the_error_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(StackError, match=r"^docker is not installed; install it with: sudo apt install.*$"):
        getattr(ComposeEngine(stack_in(tmp_path, replace(settings_on_free_ports(), engine="compose"))), verb)()
