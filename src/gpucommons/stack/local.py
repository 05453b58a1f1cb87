"""The stack without Docker: the distribution's prometheus and alertmanager, supervised, in one directory.

Their logs are shown together, each line with the name of its service.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gpucommons.base.files import FileFollower
from gpucommons.stack import stack as common
from gpucommons.stack.check import ConfigProblem, StackError, require_free_ports, run_here, tools_missing
from gpucommons.stack.health import ServiceHealth, judge, probe, reload_state, wait_for_reload
from gpucommons.stack.health import get as http_get
from gpucommons.stack.process import StartedProcess, read_pid_file, send, wait_gone
from gpucommons.stack.prometheus import alertmanager_flags, prometheus_flags
from gpucommons.stack.stack import Stack
from gpucommons.stack.supervisor import SupervisedProgram, deaths_file, read_plan, run_supervisor, write_plan

# The last lines of log files and the lines added to them, each prefixed with the name of its service.

_TAIL_POLL_S = 0.3


def last_lines(file: Path, count: int) -> list[str]:
    return list(deque(_new_lines(FileFollower(file)), count))


def show_logs(logs: Mapping[str, Path], lines: int, follow: bool, say: Callable[[str], None]) -> None:
    """Passes the last lines to `say`. With `follow`, continues with new lines until interrupted."""
    followers = {name: FileFollower(file) for name, file in logs.items()}
    for name, follower in followers.items():
        for line in deque(_new_lines(follower), lines):
            say(f"{name} | {line}")
    while follow:
        time.sleep(_TAIL_POLL_S)
        for name, follower in followers.items():
            for line in _new_lines(follower):
                say(f"{name} | {line}")


def _new_lines(follower: FileFollower) -> Iterator[str]:
    try:
        for piece in follower.poll():
            for line in piece.lines:
                yield line.decode("utf-8", "replace")
    except FileNotFoundError:
        return


# The stack without Docker: the distribution's prometheus and alertmanager, supervised, in one directory.
#
# A second start has no effect; stop ends all processes and keeps the data. Installs nothing. It has no Grafana, which
# distributions do not package.

_READY_S = 60.0
_STOP_S = 40.0
_KILL_S = 5.0
_POLL_S = 0.1
_PACKAGES = Path(__file__).resolve().parents[2]
_INSTALL = "sudo apt install prometheus prometheus-alertmanager   (macOS: brew install prometheus alertmanager)"


class LocalEngine:
    name = "local"
    services = ("prometheus", "alertmanager")

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._layout = stack.layout
        self.data_dir = stack.layout.root
        self.urls = stack.urls(with_grafana=False)

    def start(self, foreground: bool = False) -> None:
        plan = self._plan()
        with self._starting():
            if self._supervisor() is not None:
                self._stack.say("already running; apply changed settings with 'reload' or 'restart'")
                return
            self._end(self._running())
            common.prepare(self._stack, with_grafana=False, run=run_here)
            require_free_ports(self._stack.addresses(with_grafana=False), self._stack.port_owner)
            for name in self.services:
                self._layout.data(name).mkdir(mode=0o700, parents=True, exist_ok=True)
            write_plan(self._layout.run, plan)
            if not foreground:
                self._wait_ready(self._spawn())
        if foreground:
            run_supervisor(self._layout.run)
            return
        self._stack.say_where(with_grafana=False)
        self._stack.say("Grafana requires the compose engine; its dashboards are in the package as JSON")

    def stop(self) -> None:
        running = self._running()
        supervisor = self._supervisor()
        if supervisor is None and not running:
            self._stack.say("nothing is running")
            return
        self._end(running, supervisor)
        self._stack.say(f"stopped; the data stays in {self._layout.root}")

    def reload(self) -> None:
        plan = self._plan()
        if self._supervisor() is None:
            raise StackError("cannot reload: the stack is not running; start it with: gpucommons stack start")
        common.prepare(self._stack, with_grafana=False, run=run_here)
        addresses = self._stack.addresses(with_grafana=False)
        for service, address in addresses.items():
            before = reload_state(service, address)
            process = read_pid_file(self._pid_file(service))
            if process is None:
                raise StackError(f"cannot reload {service}: it is not running; see: gpucommons stack logs {service}")
            send(process, signal.SIGHUP)
            if not wait_for_reload(service, address, before):
                raise StackError(f"{service} refused the new configuration; see: gpucommons stack logs {service}")
            self._stack.say(f"{service}: reloaded")
        if plan != read_plan(self._layout.run):
            self._stack.say("some settings (listen addresses, retention) need: gpucommons stack restart")

    def update(self) -> None:
        """Restarts the programs whose files the distribution has replaced since they were started."""
        outdated = [name for name in self.services if self._is_replaced(name)]
        if not outdated:
            self._stack.say("the running programs are the installed ones; upgrade them with: sudo apt upgrade")
            return
        self._stack.say(f"restarting for a new version: {', '.join(outdated)}")
        self.stop()
        self.start()

    def build(self) -> None:
        self._stack.say("nothing to build: the local engine runs the distribution's programs")

    def check(self) -> list[ConfigProblem]:
        self._require_programs()
        return common.check(self._stack, with_grafana=False, run=run_here)

    def status(self) -> list[ServiceHealth]:
        stack = self._stack
        healths = probe(stack.health_urls(with_grafana=False), stack.settings.prometheus_listen, stack.credentials())
        return [self._with_process(health) for health in healths]

    def logs(self, service: str | None, lines: int, follow: bool) -> None:
        names = (service,) if service else self.services
        show_logs({name: self._layout.log(name) for name in names}, lines, follow, self._stack.say)

    def _plan(self) -> list[SupervisedProgram]:
        programs = self._require_programs()
        settings, layout = self._stack.settings, self._layout
        flags = {
            "prometheus": prometheus_flags(settings, layout),
            "alertmanager": alertmanager_flags(settings, layout),
        }
        return [
            SupervisedProgram(name, [programs[name], *flags[name]], str(layout.log(name))) for name in self.services
        ]

    def _require_programs(self) -> dict[str, str]:
        paths = {
            "prometheus": shutil.which("prometheus"),
            "alertmanager": shutil.which("prometheus-alertmanager") or shutil.which("alertmanager"),
        }
        missing = [name for name, path in paths.items() if path is None] + tools_missing()
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            raise StackError(f"{', '.join(missing)} {verb} not installed; install with: {_INSTALL}")
        return {name: path for name, path in paths.items() if path is not None}

    @contextlib.contextmanager
    def _starting(self) -> Iterator[None]:
        """Of two concurrent starts, the second waits and then finds the running stack."""
        self._layout.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self._layout.run / "start.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _spawn(self) -> "subprocess.Popen[bytes]":
        log = self._layout.log("supervisor")
        # The supervisor runs from the package that starts it, wherever that was imported from.
        path = os.pathsep.join(filter(None, (str(_PACKAGES), os.environ.get("PYTHONPATH"))))
        with open(log, "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "gpucommons.stack.supervisor", str(self._layout.run)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "PYTHONPATH": path},
            )

    def _wait_ready(self, supervisor: "subprocess.Popen[bytes]") -> None:
        urls = self._stack.health_urls(with_grafana=False)
        deadline = time.monotonic() + _READY_S
        waiting = list(self.services)
        while waiting and time.monotonic() < deadline and supervisor.poll() is None and not self._dead(waiting):
            waiting = [name for name in waiting if not judge(name, http_get(urls[name])).ok]
            time.sleep(_POLL_S)
        if waiting:
            failed = self._dead(waiting) or waiting
            logs = [*failed, *([] if supervisor.poll() is None else ["supervisor"])]
            tail = "\n".join(line for name in logs for line in last_lines(self._layout.log(name), 5))
            self._end(self._running(), self._supervisor())
            raise StackError(f"{', '.join(failed)} did not become ready; the last lines of the log:\n{tail}")

    def _dead(self, names: list[str]) -> list[str]:
        """Programs that ended with a valid configuration: they would end again, so waiting is pointless."""
        return [name for name in names if deaths_file(self._layout.run, name).exists()]

    def _end(self, processes: list[StartedProcess], supervisor: StartedProcess | None = None) -> None:
        all_processes = [*([supervisor] if supervisor else []), *processes]
        for identity in all_processes:
            send(identity, signal.SIGTERM)
        for identity in wait_gone(all_processes, _STOP_S):
            send(identity, signal.SIGKILL)
        left = wait_gone(all_processes, _KILL_S)
        if left:
            raise StackError(
                f"cannot end {', '.join(f'pid {identity.pid}' for identity in left)}: still running after SIGKILL;"
                " end them as the user who started them"
            )
        for name in ("supervisor", *self.services):
            self._pid_file(name).unlink(missing_ok=True)

    def _pid_file(self, name: str) -> Path:
        return self._layout.run / f"{name}.pid"

    def _supervisor(self) -> StartedProcess | None:
        return read_pid_file(self._pid_file("supervisor"))

    def _running(self) -> list[StartedProcess]:
        identities = (read_pid_file(self._pid_file(name)) for name in self.services)
        return [identity for identity in identities if identity is not None]

    def _is_replaced(self, name: str) -> bool:
        process = read_pid_file(self._pid_file(name))
        try:
            return process is not None and os.readlink(f"/proc/{process.pid}/exe").endswith(" (deleted)")
        except OSError:
            return False

    def _with_process(self, health: ServiceHealth) -> ServiceHealth:
        """A Prometheus on our port that this stack did not start does not count."""
        if health.service not in self.services or not health.ok:
            return health
        process = read_pid_file(self._pid_file(health.service))
        if process is None:
            return ServiceHealth(health.service, False, "another program answers on this port")
        return ServiceHealth(health.service, True, f"{health.detail}, pid {process.pid}")
