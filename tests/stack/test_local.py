"""The local engine with the distribution's real programs: one stack, no process left, data kept, ports named."""

import http.server
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import bcrypt
import pytest
import yaml

from certificates import Authority
from gpucommons.config.stack import StackSettings
from gpucommons.stack.check import StackError
from gpucommons.stack.health import HttpResponse, get, healthy
from gpucommons.stack.local import LocalEngine
from gpucommons.stack.process import StartedProcess, read_pid_file, wait_gone
from needs import needs_program
from running import running_agent
from stack.stacks import settings_on_free_ports, stack_in
from stack.test_check import BROKEN, GOOD


def processes(root: Path) -> dict[str, StartedProcess]:
    found = {file.stem: read_pid_file(file) for file in (root / "run").glob("*.pid")}
    return {name: identity for name, identity in found.items() if identity is not None}


class Bench:
    """One stack of a test: its engine, its output, and how to change its settings."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.said: list[str] = []
        self.site = root.parent / "site"
        self.site.mkdir()
        self.settings = settings_on_free_ports(rules_dir=str(self.site))

    def engine(self, settings: StackSettings | None = None) -> LocalEngine:
        return LocalEngine(stack_in(self.root, settings or self.settings, self.said))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    needs_program("prometheus", "prometheus-alertmanager", "promtool", "amtool")
    made = Bench(tmp_path / "data")
    yield made
    made.engine().stop()
    assert processes(made.root) == {}


def test_start_reload_and_stop(bench: Bench) -> None:
    bench.engine().start()
    first = processes(bench.root)
    assert set(first) == {"supervisor", "prometheus", "alertmanager"}

    bench.engine().start()
    assert processes(bench.root) == first, "a second start has no effect"
    assert any("already running" in line for line in bench.said)

    (bench.site / "mine.yml").write_text(BROKEN["a key that does not exist"][0])
    with pytest.raises(StackError, match=r"mine\.yml:6"):
        bench.engine().reload()
    (bench.site / "mine.yml").write_text(GOOD.replace("alert: A", "alert: Mine"))
    bench.engine().reload()
    rules = get(f"http://{bench.settings.prometheus_listen}/api/v1/rules")
    assert isinstance(rules, HttpResponse)
    assert b'"Mine"' in rules.body
    assert processes(bench.root) == first, "nothing was restarted"

    bench.said.clear()
    changed = replace(bench.settings, retention_days=9)
    bench.engine(changed).reload()
    assert any("restart" in line for line in bench.said), "settings that need a restart are named"

    bench.said.clear()
    bench.engine().logs("prometheus", 5, follow=False)
    assert bench.said
    assert all(line.startswith("prometheus | ") for line in bench.said)

    bench.engine().stop()
    assert wait_gone(first.values(), 0) == [], "stop ends all processes"
    assert list((bench.root / "prometheus" / "wal").iterdir()), "the data is kept"
    bench.engine().stop()
    assert bench.said[-1] == "nothing is running"


@pytest.mark.long
def test_two_concurrent_starts_start_one_stack(bench: Bench) -> None:
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(bench.engine().start) for _ in range(2)]:
            done.result()
    assert set(processes(bench.root)) == {"supervisor", "prometheus", "alertmanager"}
    assert sum("already running" in line for line in bench.said) == 1


@pytest.mark.long
def test_agents_with_tls_and_a_password_are_scraped_and_checked(bench: Bench, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("agent", "127.0.0.1")
    hashed = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4)).decode()
    web = {
        "tls_server_config": {"cert_file": str(pair.cert_file), "key_file": str(pair.key_file)},
        "basic_auth_users": {"prometheus": hashed},
    }
    (tmp_path / "web.yml").write_text(yaml.safe_dump(web))
    (tmp_path / "password").write_text("open sesame\n")
    with running_agent(
        "--simulate",
        "lab",
        "--web.config.file",
        str(tmp_path / "web.yml"),
        environment={"STATE_DIRECTORY": str(tmp_path)},
    ) as agent:
        settings = replace(
            bench.settings, agent=agent.url.removeprefix("https://"), scrape_interval_s=0.5, ds01_interval_s=0.5
        )
        trusting = replace(
            settings,
            agents_ca_file=str(authority.file),
            agents_username="prometheus",
            agents_password_file=str(tmp_path / "password"),
        )
        engine = bench.engine(trusting)
        engine.start()
        for _ in range(300):
            healths = engine.status()
            if healthy(healths):
                break
            threading.Event().wait(0.1)
        assert healthy(healths), healths
        by_service = {health.service: health for health in bench.engine(settings).status()}
        assert not by_service["agent"].ok, "a request without them is refused"


def test_a_port_in_use_is_named_with_its_process(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(StackError) as caught:
            bench.engine(replace(bench.settings, alertmanager_listen=address)).start()
    message = str(caught.value)
    assert address in message
    assert f"(pid {os.getpid()})" in message
    assert "stack.alertmanager_listen" in message
    assert processes(bench.root) == {}, "nothing was started"


def test_another_program_on_our_port_is_reported_as_down(bench: Bench) -> None:
    class Ready(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ready)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        settings = replace(bench.settings, prometheus_listen=f"127.0.0.1:{server.server_port}")
        by_service = {health.service: health for health in bench.engine(settings).status()}
    finally:
        server.shutdown()
        server.server_close()
    assert not by_service["prometheus"].ok
    assert "another program answers" in by_service["prometheus"].detail


def test_a_program_that_cannot_run_is_reported_with_its_last_log_lines(bench: Bench) -> None:
    data = bench.root / "prometheus"
    data.mkdir(parents=True)
    (data / "wal").write_text("a file where a directory belongs")
    with pytest.raises(StackError) as caught:
        bench.engine().start()
    assert "prometheus did not become ready" in str(caught.value)
    assert "not a directory" in str(caught.value)
    assert processes(bench.root) == {}, "no process is left"


def test_missing_programs_are_named_with_the_command_to_install_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(
        StackError, match=r"prometheus, alertmanager, promtool, amtool are not installed; install with: sudo apt"
    ):
        bench.engine().start()


@pytest.mark.long
def test_the_next_start_ends_what_a_killed_supervisor_left(bench: Bench) -> None:
    bench.engine().start()
    old = processes(bench.root)
    os.kill(old["supervisor"].pid, signal.SIGKILL)
    assert wait_gone([old["supervisor"]], 5) == []
    bench.engine().start()
    new = processes(bench.root)
    assert set(new) == {"supervisor", "prometheus", "alertmanager"}
    assert not set(new.values()) & set(old.values())
    assert wait_gone(old.values(), 5) == []


def test_build_and_update_explain_that_there_is_nothing_to_do(bench: Bench) -> None:
    bench.engine().build()
    bench.engine().update()
    assert bench.said[0].startswith("nothing to build")
    assert "apt upgrade" in bench.said[1]
