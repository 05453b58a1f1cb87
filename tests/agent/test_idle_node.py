"""A whole agent on fake GPUs: a job that works and then idles gets a message, a reminder, and is parked or ended."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.gpu.account import Phase
from fakes.shared_gpu import MATMUL
from gpucommons.cli.agent_client import AgentAddress, get
from gpucommons.pauser.backend import State
from prometheus_server import free_port
from receivers import hook, mailbox
from running import command
from shared_node import SharedNode, shared_node
from waiting import until

UID = 4711
LOGIN_SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "login" / "gpucommons-messages.sh"


@pytest.fixture
def node() -> Iterator[SharedNode]:
    with shared_node(2) as made:
        yield made


def sections(mail: str, webhook: str, act: str, act_after_s: int = 7) -> str:
    """With readings often enough that no step waits long for one."""
    return f"""
        [sampling]
        interval_s = 0.5
        [idle]
        after_s = 3
        remind_after_s = 4
        act = "{act}"
        act_after_s = {act_after_s}
        [idle_rules]
        quiet = {{ user = "4712", leave_alone = true }}
        [mail]
        server = "{mail}"
        tls = "none"
        sender = "gpus@example.org"
        address = "{{user}}@example.org"
        [webhook]
        url = "{webhook}"
    """


def api(node: SharedNode) -> str:
    """The socket on which root sees the messages to all users: a peer over TCP sees none."""
    return f"unix:{node.run}/api.sock"


def document(node: SharedNode, name: str, **parameters: str) -> dict[str, Any]:
    return dict(get(AgentAddress(api(node)), name, parameters)[name])


def events(node: SharedNode) -> list[tuple[str, str]]:
    """Type and user of each event of the escalation, oldest first."""
    found = document(node, "events", type="idle").values()
    return [(event["type"], event["user"]) for event in reversed(found)]


def messages(node: SharedNode) -> list[dict[str, Any]]:
    return list(document(node, "messages", user=str(UID)).values())


def ended(node: SharedNode) -> bool:
    """Whether all messages to root but the newest are over."""
    found = list(document(node, "messages", user="root").values())
    return len(found) > 1 and all(each["over"] for each in found[1:])


def at_login(directory: Path, environment: dict[str, str]) -> str:
    """What the login script prints in an interactive shell; in another one it prints nothing."""
    program = directory / "bin" / "gpucommons"
    program.parent.mkdir()
    path = os.pathsep.join(filter(None, sys.path))
    program.write_text(f'#!/bin/sh\nPYTHONPATH={path!r} exec {sys.executable} -m gpucommons "$@"\n')
    program.chmod(0o755)
    # A loaded machine may need more than the two seconds of a login.
    slow = directory / "bin" / "timeout"
    slow.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    slow.chmod(0o755)

    def printed(*options: str) -> str:
        return subprocess.run(
            ["bash", "--norc", "--noprofile", *options, "-c", f". {LOGIN_SCRIPT}"],
            env={**os.environ, **environment, "PATH": f"{program.parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout

    assert printed() == ""
    return printed("-i")


def about(texts: list[str], pid: int) -> list[str]:
    return [text for text in texts if f"{pid}" in text]


@pytest.mark.long
def test_a_job_that_worked_and_idles_is_notified_reminded_and_parked_across_a_restart(
    node: SharedNode, tmp_path: Path
) -> None:
    state = {"STATE_DIRECTORY": str(tmp_path), "GPUCOMMONS_WEB_SOCKET": api(node)}
    with mailbox() as (box, server), hook() as (made, url):
        config = sections(server, url, "park")
        node.start_agent(sections=config, environment=state)
        works = node.program(MATMUL[512], gpu=0, uid=UID)
        idles = node.program(phases=[Phase(MATMUL[512], 3.0), Phase(None)], gpu=1, uid=UID, memory_bytes=64 << 20)
        quiet = node.program(phases=[Phase(None)], gpu=1, uid=4712)
        until(lambda: box.mails, "the first message")
        assert idles.work.progress_s > 2, "it has worked"
        until(lambda: ("idle.notified", str(UID)) in events(node), "the event")
        node.agent.stop(signal.SIGKILL)

        node.start_agent(sections=config, environment=state)
        node.wait_for(lambda: idles.program.state is State.CHECKPOINTED, "it is parked", within_s=80)
        until(lambda: len(box.mails) >= 3, "three messages")
        until(lambda: len(made.texts) >= 3, "on each channel")
        until(lambda: ("idle.acted", str(UID)) in events(node), "the event")
        assert events(node) == [(f"idle.{what}", str(UID)) for what in ("notified", "reminded", "acted")]
        shown = messages(node)
        metrics = node.agent.get("/metrics")[1]
    assert box.recipients == [f"{UID}@example.org"] * 3, "and none to the rule's user"
    first, second, third = box.texts()
    assert first.startswith("GPU 1 of ")
    assert f"(pid {idles.pid})" in first
    assert f"gpucommons park {idles.pid}" in first
    assert "its GPU memory is moved to host memory after" in first
    assert second.startswith("Reminder: GPU 1 of ")
    assert f"`gpucommons wake {idles.pid}`" in third
    assert about(box.texts(), works.pid) == about(box.texts(), quiet.pid) == []
    assert [text.replace("\u200b", "") for text in made.texts] == box.texts()
    assert [each["step"] for each in shown] == ["act", "remind", "notify"]
    assert [" ".join(each["text"].split()) for each in reversed(shown)] == box.texts()
    assert 'gpucommons_idle_channel_up{channel="email"} 1' in metrics
    assert 'gpucommons_idle_messages_total{channel="webhook",outcome="delivered"} 2' in metrics, "of the second agent"


@pytest.mark.long
def test_a_lease_that_is_not_used_is_ended(node: SharedNode, tmp_path: Path) -> None:
    sockets = {
        "GPUCOMMONS_LEASES_SOCKET": str(tmp_path / "leases.sock"),
        "GPUCOMMONS_WEB_SOCKET": api(node),
        # Also where a Slurm runs on this machine.
        "GPUCOMMONS_LEASES_ENABLED": "true",
    }
    with mailbox() as (box, server), hook() as (_, url):
        node.start_agent(sections=sections(server, url, "end_lease", 1), environment=sockets)
        run = subprocess.Popen(
            [sys.executable, "-m", "gpucommons", "run", "--quiet", "--", "sleep", "600"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **sockets},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _, said = run.communicate(timeout=90)
        finally:
            run.kill()
        until(lambda: len(box.mails) >= 2, "both messages")
        until(lambda: ("idle.acted", "root") in events(node), "the event")
        until(lambda: ended(node), "the lease is over, and so is the first message")
        shown = [command("me", *more, "--connect", api(node)) for more in (("--messages",), ())]
        hint = at_login(tmp_path, sockets)
        document = json.loads(command("me", "--json", "--connect", api(node)).stdout)["me"]["messages"]
    # The message about the action is new; the first one is over, as its lease is.
    assert [done.stdout.count("message (") for done in shown] == [1, len(document)]
    assert "was ended, because it had not used GPU" in " ".join(shown[0].stdout.split())
    assert hint == shown[0].stdout
    assert next(each["step"] for each in document.values()) == "act"
    assert [each["over"] for each in document.values()] == [False, *[True] * (len(document) - 1)]
    assert "the lease was ended: GPU" in said
    assert "had not been used for" in said
    assert run.returncode != 0
    first, last = box.texts()[0], box.texts()[-1]
    assert "of your" not in first
    assert "held by your lease" in first
    assert "gpucommons cancel" in first
    assert "was ended, because it had not used GPU" in last
    assert box.recipients == ["root@example.org"] * len(box.mails)


@pytest.mark.long
def test_an_unreachable_channel_is_visible_and_blocks_neither_the_agent_nor_the_other_channel(
    node: SharedNode, tmp_path: Path
) -> None:
    port = free_port()
    with hook() as (made, url):
        config = sections(f"127.0.0.1:{port}", url, "none")
        node.start_agent(sections=config, environment={"GPUCOMMONS_WEB_SOCKET": api(node)})
        node.program(phases=[Phase(None)], gpu=1, uid=UID)
        until(lambda: made.texts, "the webhook gets the message")

        def problem() -> dict[str, Any] | None:
            return dict(document(node, "problems").get("channel_failing/email") or {})

        shown = until(problem, "the problem is shown")
        over_tcp = json.loads(node.agent.get("/api/v1/problems")[1])["problems"]["channel_failing/email"]
        down = 'gpucommons_idle_channel_up{channel="email"} 0'
        until(lambda: down in node.agent.get("/metrics")[1], "the metric")
        log = [line for line in node.agent.lines if "email does not deliver" in line]
        # The server comes, and what waited arrives.
        with mailbox(port) as (box, _):
            until(lambda: box.mails, "it is tried again")
            until(lambda: not problem(), "the problem has ended")
    assert "Connection refused" in str(shown["sentence"])
    assert over_tcp["sentence"] == "Messages by email are not delivered (1 waits).", "the detail may name a user"
    assert "--send-test" in str(shown["remedy"])
    assert len(log) == 1


def test_the_channels_can_be_tried_before_the_agent_uses_them(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"

    def tried(mail: str, webhook: str, *more: str) -> tuple[int, str, str]:
        config.write_text(sections(mail, webhook, "none"))
        done = command("check-config", str(config), "--send-test", *more)
        return done.returncode, done.stdout, done.stderr

    with mailbox() as (box, server), hook() as (made, url):
        assert tried(server, url, "--to", "admin@example.org") == (
            0,
            "email: delivered to admin@example.org\nwebhook: delivered\n",
            "",
        )
        assert (box.recipients, len(made.texts)) == (["admin@example.org"], 1)
        assert "test message of gpucommons" in box.texts()[0]
        status, out, error = tried(f"127.0.0.1:{free_port()}", url, "--to", "admin@example.org")
        assert (status, out) == (1, "webhook: delivered\n")
        assert "email: failed: cannot reach the mail server 127.0.0.1:" in error
        status, out, error = tried(f"127.0.0.1:{free_port()}", url, "--to", "admin@example.org", "--json")
        email, webhook = (json.loads(out)["channels"][name] for name in ("email", "webhook"))
        assert (status, email["delivered"], error) == (1, False, f"email: failed: {email['error']}\n")
        assert webhook == {"delivered": True, "address": None, "error": None}
        status, _, error = tried(server, url)
        assert status == 2
        assert "mail.admin" in error
    config.write_text("")
    done = command("check-config", str(config), "--send-test")
    assert done.returncode == 2
    assert "no channel is configured" in done.stderr
