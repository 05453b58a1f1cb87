"""The agent from outside: it starts anywhere, says what is missing, serves, and stops cleanly."""

import re
import socket
import subprocess
import time
from pathlib import Path

import pytest

from parsing import parsed
from promtool import judged
from running import command_process, json_lines, running_agent
from waiting import until


def test_it_starts_prints_its_address_and_stops() -> None:
    with running_agent() as agent:
        status, body = agent.get("/metrics")
        assert status == 200
        found = parsed(body)
        assert ("gpucommons_source_up", (("source", "cpu"),)) in found
        assert agent.get("/healthz") == (200, "OK")
        begun = time.monotonic()
        assert agent.stop() == 0
        assert time.monotonic() - begun < 8
        text = "\n".join(agent.lines)
        assert "/metrics" in text
        assert "Traceback" not in text


def test_it_starts_with_nothing_to_read(tmp_path: Path) -> None:
    with running_agent("--path.procfs", str(tmp_path / "no-proc")) as agent:
        until(lambda: "--path.procfs" in "\n".join(agent.lines), "it says what is missing and what to do")
        found = parsed(agent.get("/metrics")[1])
        assert found["gpucommons_source_up", (("source", "memory"),)] == 0
        assert found["gpucommons_source_absent", (("source", "memory"),)] == 1
        assert ("node_memory_total_bytes", ()) not in found, "missing values are absent, not 0"
        assert agent.get("/healthz")[0] == 200
        status, why = agent.get("/readyz")
        assert status == 503
        assert "memory" in why
        assert agent.stop() == 0


@pytest.mark.long
def test_a_hanging_source_does_not_prevent_serving_or_ending(tmp_path: Path) -> None:
    procfs = tmp_path / "proc"
    procfs.mkdir()
    # Opening a fifo without a writer blocks forever, as a dead FUSE mount does.
    subprocess.run(["mkfifo", str(procfs / "meminfo")], check=True)
    (procfs / "stat").write_text("cpu 1 1 1 1 1\ncpu0 1 1 1 1 1\n")
    with running_agent("--path.procfs", str(procfs), "--interval", "0.2") as agent:

        def timed_out() -> str | None:
            body = agent.get("/metrics")[1]
            return body if 'memory",reason="timeout"' in body else None

        found = parsed(until(timed_out, "the hung source is given up", within_s=20))
        assert found["gpucommons_source_up", (("source", "memory"),)] == 0
        assert found["gpucommons_source_up", (("source", "cpu"),)] == 1
        assert agent.get("/readyz")[0] == 503
        assert "memory" in agent.get("/readyz")[1]
        assert agent.stop() == 0


@pytest.mark.long
def test_simulation_is_visibly_marked() -> None:
    with running_agent("--simulate", "lab", "--log-format", "json") as agent:
        body = agent.get("/metrics")[1]
        assert parsed(body)["gpucommons_simulated", (("scenario", "lab"),)] == 1
        assert body.startswith("# SIMULATED")
        assert agent.get("/metrics/node")[1].startswith("# SIMULATED")
        assert "SIMULATED" in agent.get("/")[1]
        assert agent.stop() == 0
        assert any("SIMULATED" in line["message"] for line in json_lines(agent.lines))


@pytest.mark.long
def test_nothing_is_logged_per_scrape() -> None:
    with running_agent("--simulate", "lab") as agent:
        before = len(agent.lines)
        for _ in range(100):
            agent.get("/metrics")
        agent.stop()
        assert len(agent.lines) - before < 50, agent.lines[before:]


@pytest.mark.long
def test_a_drop_in_listener_serves_one_dialect(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "g.toml"
    config.write_text(f'[listeners]\nnode = "127.0.0.1:{port}"\n')
    with running_agent("--config", str(config)) as agent:
        agent.url = f"http://127.0.0.1:{port}"
        names = {name for name, _ in parsed(agent.get("/metrics")[1])}
        assert "node_memory_total_bytes" in names
        assert not any(name.startswith("gpucommons_") for name in names)
        assert agent.get("/healthz") == (200, "OK")


@pytest.mark.long
def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = command_process("up", "--listen", f"127.0.0.1:{port}")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert str(port) in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("arguments", [(), ("--simulate", "lab")], ids=["this machine", "lab"])
def test_promtool_accepts_what_is_served(arguments: tuple[str, ...]) -> None:
    with running_agent(*arguments) as agent:
        everything, ours, node = (agent.get(f"/metrics{name}")[1] for name in ("", "/gpucommons", "/node"))
    for body in (ours, node):
        assert judged(body) == []
    # The names of others are theirs to choose: promtool may dislike them, but it must understand them.
    disliked = [line for line in judged(everything) if not line.startswith(("DCGM_", "nvshare_", "ds01_"))]
    assert disliked == []


def test_what_does_not_exist_here_is_one_line(tmp_path: Path) -> None:
    """Also the missing driver, with the way to the demo."""
    environment = {
        f"GPUCOMMONS_PATH_{name}": str(tmp_path / name) for name in ("DOCKER_SOCKET", "PODMAN_SOCKET", "KERNEL_LOG")
    }
    with running_agent(environment=environment) as agent:
        until(lambda: any("not on this machine" in line for line in agent.lines), "the line")
        (line,) = [line for line in agent.lines if "not on this machine" in line]
        assert {"docker", "podman", "kernel_log", "ds01"} <= set(re.findall(r"\w+", line))
        assert [each for each in agent.lines if "source " in each] == []
        if not Path("/proc/driver/nvidia").exists():
            (gpu,) = [each for each in agent.lines if "no GPU found" in each]
            assert "libnvidia-ml" in gpu
            assert gpu.endswith("gpucommons up --simulate lab")
