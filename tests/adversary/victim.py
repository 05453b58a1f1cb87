"""The agent under attack: its own process, a fake driver with two GPUs, the scheduler, a ledger and a password.

An honest scraper and an honest client use it during every attack. What they get is the outcome.
"""

import base64
import http.client
import re
import threading
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import bcrypt

from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml
from parsing import parsed
from running import RunningAgent, running_agent
from scheduler.served import Scripted
from waiting import until

# Every address of 127.0.0.0/8 is this machine's on Linux: the attackers have others.
SCRAPER = "127.0.0.9"
PASSWORD = "Basic " + base64.b64encode(b"prometheus:secret").decode()
_PATIENCE_S = 30.0
_TROUBLE = re.compile(r"Traceback|unexpected|internal error")


class Victim:
    def __init__(self, agent: RunningAgent, socket_path: str, ledger: Path, driver: FakeNvml) -> None:
        self.agent, self.socket_path, self.ledger, self.driver = agent, socket_path, ledger, driver
        found = urllib.parse.urlsplit(agent.url)
        self.address = (str(found.hostname), found.port or 0)

    def is_ready(self) -> bool:
        return self.agent.get("/metrics", {"Authorization": PASSWORD})[0] == 200

    def scrape(self, path: str = "/metrics", source: str = SCRAPER) -> str:
        """One request with the password; any other answer than 200 is an error."""
        connection = http.client.HTTPConnection(*self.address, timeout=_PATIENCE_S, source_address=(source, 0))
        try:
            connection.request("GET", path, headers={"Authorization": PASSWORD})
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status == 200, f"{path}: {answer.status} {text[:200]}"
            return text
        finally:
            connection.close()

    def take_turn(self) -> None:
        client = Scripted(self.socket_path)
        client.socket.settimeout(_PATIENCE_S)
        client.register("honest", "users", gpu="1").ask().granted().release()
        client.close()

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.agent.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024

    def check(self) -> None:
        """After an attack: it runs, its metrics are valid, turns are handed over, and nothing unexpected was logged."""
        assert self.agent.process.poll() is None, "\n".join(self.agent.lines[-20:])
        parsed(self.scrape())
        self.take_turn()
        assert not [line for line in self.agent.lines if _TROUBLE.search(line)]

    @contextmanager
    def in_use(self, counts: Counter[str]) -> Iterator[None]:
        """The honest users, on their own threads. Their failure ends the attack."""
        stop, errors = threading.Event(), []

        def use(what: str, once: Callable[[], object]) -> None:
            while not stop.is_set():
                try:
                    once()
                except (AssertionError, OSError, http.client.HTTPException) as error:
                    errors.append(f"{what}: {type(error).__name__}: {error}")
                    return
                counts[what] += 1
                stop.wait(0.05)

        users = [
            threading.Thread(target=use, args=("honest scrapes", self.scrape)),
            threading.Thread(target=use, args=("honest turns", self.take_turn)),
        ]
        for user in users:
            user.start()
        try:
            yield
        finally:
            stop.set()
            for user in users:
                user.join()
        assert not errors, errors


@contextmanager
def victim(directory: Path) -> Iterator[Victim]:
    for name in ("library", "state"):
        (directory / name).mkdir()
    driver = FakeNvml(directory / "driver", build(directory / "library"))
    driver.say("gpus 2")
    web_config = directory / "web.yml"
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(rounds=6)).decode()
    web_config.write_text(f"basic_auth_users: {{prometheus: {hashed}}}\n")
    socket_path = str(directory / "s.sock")
    environment = {
        **driver.environment(),
        "STATE_DIRECTORY": str(directory / "state"),
        "GPUCOMMONS_SCHEDULER_SOCKET": socket_path,
        "NVSHARE_SCHEDULING_MODE": "serial",
        "NVSHARE_SWITCH_TIME_MODE": "fixed",
        "NVSHARE_SWITCH_TIME_FIXED": "1",
    }
    with running_agent("--scheduler", "--web.config.file", str(web_config), environment=environment) as agent:
        found = Victim(agent, socket_path, directory / "state/ledger.sqlite", driver)
        # With a password, an agent without a sample answers 401 before it answers 503.
        until(found.is_ready, "the first sample")
        found.check()
        yield found
        assert agent.stop() == 0
