"""SIGHUP reloads the web configuration of a running agent and does not end it."""

import base64
import signal
from pathlib import Path

import bcrypt
import pytest

from running import running_agent
from waiting import until


def users(password: bytes) -> str:
    return f"basic_auth_users: {{prometheus: {bcrypt.hashpw(password, bcrypt.gensalt(rounds=4)).decode()}}}\n"


@pytest.mark.long
def test_a_hangup_reloads_the_passwords(tmp_path: Path) -> None:
    path = tmp_path / "web.yml"
    path.write_text("{}")
    with running_agent("--web.config.file", str(path)) as agent:
        assert agent.get("/healthz")[0] == 200
        path.write_text(users(b"secret"))
        agent.process.send_signal(signal.SIGHUP)
        until(lambda: agent.get("/healthz")[0] == 401, "the new passwords are in force")
        header = {"Authorization": "Basic " + base64.b64encode(b"prometheus:secret").decode()}
        assert agent.get("/healthz", header)[0] == 200
        # An unchanged file is read again too.
        before = sum("reloaded the web configuration" in line for line in agent.lines)
        agent.process.send_signal(signal.SIGHUP)
        until(lambda: sum("reloaded the web conf" in line for line in agent.lines) > before, "the file is read again")
        assert agent.stop() == 0


@pytest.mark.long
def test_a_hangup_without_a_web_configuration_changes_nothing() -> None:
    with running_agent() as agent:
        agent.process.send_signal(signal.SIGHUP)
        until(lambda: any("no web configuration" in line for line in agent.lines), "the signal is logged")
        assert agent.get("/healthz")[0] == 200
        assert agent.stop() == 0
