"""A real agent in a separate process, for tests from outside."""

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpucommons.cli.main import main
from gpucommons.sources.nvml import library
from waiting import until

# No listener of an agent on this machine is asked.
_ALONE = {"GPUCOMMONS_WEB_LISTEN": ""}


@dataclass
class RunningAgent:
    """`lines` is the log so far; `url` is the main listener's."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)
    url: str = ""
    ready: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def follow(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            found = re.search(r"page +(https?://\S+)/", line)
            if found:
                self.url = found.group(1)
                self.ready.set()
        self.ended.set()
        self.ready.set()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        request = urllib.request.Request(self.url + path, headers=dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def wait_for_the_first_sample(self) -> None:
        """Listeners are open before the first sample; until then /metrics responds with 503."""
        if self.url.startswith("https"):
            return
        until(lambda: self.get("/metrics")[0] != 503, "a sample is taken")

    def rss_kb(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends the agent and returns its exit status. An agent that does not end fails the test."""
        self.process.send_signal(number)
        status = self.process.wait(timeout=60)
        self.ended.wait(60)
        return status


def command(*arguments: str, environment: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """Run one `gpucommons` command in this process, to its end. A process of its own would mostly import.

    It finds no agent, unless the test gives it the agent's place. What a new process reads as it starts, such as
    LD_LIBRARY_PATH, has no effect here: `command_process` is for that, and for commands that start programs. It finds
    no driver either: a fake one that another test has loaded into this process would be left with an open session.
    """
    out, err, status = io.StringIO(), io.StringIO(), 0
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        for name, value in _environment(directory, {**_ALONE, **(environment or {})}).items():
            patch.setenv(name, value)
        patch.setattr(library, "start", _find_no_driver)
        try:
            with redirect_stdout(out), redirect_stderr(err):
                main(arguments)
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)
    return subprocess.CompletedProcess(["gpucommons", *arguments], status, out.getvalue(), err.getvalue())


def _find_no_driver() -> None:
    raise library.SessionLost(library.LIBRARY_NOT_FOUND)


def command_process(
    *arguments: str, environment: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> "subprocess.CompletedProcess[str]":
    """As `command`, in a process of its own, which `prefix` starts."""
    with tempfile.TemporaryDirectory() as directory:
        return subprocess.run(
            [*prefix, sys.executable, "-m", "gpucommons", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env=_environment(directory, {**_ALONE, **(environment or {})}),
        )


def _environment(directory: str, given: Mapping[str, str] | None) -> dict[str, str]:
    """Ours, with the sources on the path; the files and sockets of the agent are removed with the test."""
    ours = {
        "RUNTIME_DIRECTORY": directory,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "STATE_DIRECTORY": directory,
        "GPUCOMMONS_SCHEDULER_XPUSHARE_SOCKET": f"{directory}/xpushare.sock",
        "GPUCOMMONS_LEASES_SOCKET": f"{directory}/leases.sock",
    }
    return {**os.environ, **ours, **(given or {})}


@contextmanager
def running_agent(
    *arguments: str, environment: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> Iterator[RunningAgent]:
    """`gpucommons up` on a free port, ready for requests. `prefix` is a command that starts it."""
    directory = tempfile.TemporaryDirectory()
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "gpucommons", "up", "--listen", "127.0.0.1:0", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(directory.name, environment),
    )
    agent = RunningAgent(process)
    threading.Thread(target=agent.follow, daemon=True).start()
    try:
        assert agent.ready.wait(120), "the agent did not start"
        assert agent.url, "\n".join(agent.lines)
        agent.wait_for_the_first_sample()
        yield agent
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        directory.cleanup()


def json_lines(lines: list[str]) -> list[dict[str, str]]:
    return [json.loads(line) for line in lines]
