"""Every entry of the table "What a peer sees" in docs/web.md, against running agents on separate hosts."""

import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import bcrypt
import pytest

from gpucommons.simulation import lab_people
from testbeds.hosts import Host, ask, host, join
from waiting import until

DOC = Path(__file__).resolve().parents[3] / "docs" / "web.md"
HEADER = "| listener | `show_owners` | password |"
LISTENERS, SETTINGS, PASSWORDS = ("loopback", "off loopback", "Unix socket"), ("auto", "all", "own"), ("no", "yes")
# A user of the scenario, and one without rows in it.
ALICE, STRANGER, ROOT = lab_people.ALICE.uid, 4711, 0
CREDENTIALS = ("prometheus", "correct horse")
AGENT = "10.77.0.1"
MANY_AGENTS = Path(__file__).resolve().parents[2] / "many_agents.py"
Get = Callable[[str], tuple[int, str]]


@dataclass(frozen=True)
class Entry:
    listener: str
    show_owners: str
    password: str
    column: str
    word: str

    def __str__(self) -> str:
        return f"{self.listener}, {self.show_owners}, password {self.password}, {self.column}"


def entries() -> list[Entry]:
    lines = DOC.read_text().splitlines()
    (start,) = [number for number, line in enumerate(lines) if line.startswith(HEADER)]
    columns = _cells(lines[start])
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        listener, setting, password, *words = _cells(line)
        found += [Entry(listener, setting, password, *pair) for pair in zip(columns[3:], words, strict=True)]
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip().strip("`") for cell in line.strip("|").split("|")]


def test_the_table_is_complete() -> None:
    columns = ("main: metrics", "main: page and API", "drop-in: metrics", "drop-in: page")
    found = [(entry.listener, entry.show_owners, entry.password, entry.column) for entry in entries()]
    assert found == list(product(LISTENERS, SETTINGS, PASSWORDS, columns))


@dataclass(frozen=True)
class Site:
    """The listeners of each (show_owners, password), and the two hosts that send requests."""

    agents: Host
    elsewhere: Host
    folder: Path

    def listener(self, entry: Entry) -> Callable[..., tuple[int, str]]:
        """A function that sends a request to the listener of an entry: (path, password=..., uid=...)."""
        main = entry.column.startswith("main")
        number = _number(entry.show_owners, entry.password)
        if entry.listener == "Unix socket":
            path = self.folder / f"{number}-{'main' if main else 'drop-in'}.sock"
            return lambda what, uid: ask(_connected(path, uid), what)
        if entry.listener == "loopback":
            return partial(self.agents.get, f"127.0.0.1:{9000 + number if main else 9100 + number}")
        return partial(self.elsewhere.get, f"{AGENT}:{9200 + number if main else 9300 + number}")


def _number(show_owners: str, password: str) -> int:
    return list(product(SETTINGS, PASSWORDS)).index((show_owners, password))


def _connected(path: Path, uid: int) -> socket.socket:
    """The kernel records the effective user when a socket connects."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(20)
    os.seteuid(uid)
    try:
        peer.connect(str(path))
    finally:
        os.seteuid(0)
    return peer


def _settings(folder: Path, number: int, show_owners: str, password: str) -> tuple[str, str]:
    """Two agents: an agent has one main listener on TCP. The first has all drop-ins and the Unix socket."""
    web = f'config_file = "{folder}/web.yml"\n' if password == "yes" else ""
    privacy = f'[privacy]\nshow_owners = "{show_owners}"\n'
    near = (
        f'[web]\n{web}listen = "127.0.0.1:{9000 + number}"\nsocket = "unix:{folder}/{number}-main.sock"\n{privacy}'
        f'[listeners]\nds01 = "127.0.0.1:{9100 + number}"\ngpucommons = "{AGENT}:{9300 + number}"\n'
        f'nvshare = "unix:{folder}/{number}-drop-in.sock"\n'
    )
    # Every interface, which is off loopback too.
    far = f'[web]\n{web}listen = "0.0.0.0:{9200 + number}"\n{privacy}'
    return near, far


@contextmanager
def _folder() -> Iterator[Path]:
    """A directory that other users may enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        agents, elsewhere = stack.enter_context(host()), stack.enter_context(host())
        folder = stack.enter_context(_folder())
        join(agents, f"{AGENT}/30", elsewhere, "10.77.0.2/30", "wire")
        user, password = CREDENTIALS
        hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
        (folder / "web.yml").write_text(f"basic_auth_users:\n  {user}: {hashed}\n")
        files = []
        for number, (show_owners, with_password) in enumerate(product(SETTINGS, PASSWORDS)):
            for place, text in zip(("near", "far"), _settings(folder, number, show_owners, with_password), strict=True):
                files.append(folder / f"{number}-{place}.toml")
                files[-1].write_text(f"{text}[ledger]\nenabled = false\n[sampling]\ninterval_s = 5\n")
        log = folder / "log"
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        stack.enter_context(agents.running([sys.executable, str(MANY_AGENTS), *map(str, files)], log, path))
        for port in (base + number for base in (9000, 9200) for number in range(6)):
            until(partial(_ready, agents, f"127.0.0.1:{port}"), f"{port} is ready:\n{log.read_text()}", 120)
        yield Site(agents, elsewhere, folder)


def _ready(agents: Host, address: str) -> bool:
    try:
        return agents.get(address, "/readyz", password=CREDENTIALS)[0] == 200
    except OSError:
        return False


@pytest.mark.parametrize("entry", entries(), ids=str)
def test_an_entry_of_the_table(site: Site, entry: Entry) -> None:
    listener = site.listener(entry)
    sees: Callable[[Get, str], None] = {
        "main: metrics": _metrics,
        "drop-in: metrics": _metrics,
        "main: page and API": _page_and_api,
        "drop-in: page": _plain_page,
    }[entry.column]
    unix = entry.listener == "Unix socket"
    if entry.word == "password":
        assert not unix
        _refused(listener)
        _refused(partial(listener, password=(CREDENTIALS[0], "wrong")))
        sees(partial(listener, password=CREDENTIALS), "everything")
    elif entry.word in ("by user", "as ps"):
        assert unix
        sees(partial(listener, uid=ROOT), "everything")
        as_ps = entry.word == "as ps"
        sees(partial(listener, uid=ALICE), "names" if as_ps else "own")
        sees(partial(listener, uid=STRANGER), "names" if as_ps else "nothing")
    else:
        what = {
            "open": "everything",
            "all names": "everything",
            "names": "names",
            "closed": "nothing",
            "no names": "nothing",
        }
        for uid in (ALICE, STRANGER) if unix else (None,):
            sees(listener if uid is None else partial(listener, uid=uid), what[entry.word])


@pytest.mark.parametrize("port", [9000, 9100, 9200, 9300], ids=["main", "drop-in", "main, far", "drop-in, far"])
def test_health_is_open_to_every_peer(site: Site, port: int) -> None:
    number = _number("own", "no")
    near = port in (9000, 9100)
    address = f"{'127.0.0.1' if near else AGENT}:{port + number}"
    asker = site.agents if near else site.elsewhere
    assert asker.get(address, "/health") == asker.get(address, "/healthz") == (200, "OK")


def _refused(get: Get) -> None:
    for path in ("/metrics", "/", "/api/v1/who", "/healthz"):
        assert get(path)[0] == 401


def _metrics(get: Get, sees: str) -> None:
    status, body = get("/metrics")
    is_open = sees in ("everything", "names")
    assert status == (200 if is_open else 403)
    # Of the three dialects that the drop-ins serve, each names a user or a pod.
    assert ('alice"' in body or 'pod="' in body) is is_open


def _page_and_api(get: Get, sees: str) -> None:
    assert get("/")[0] == 200
    status, body = get("/api/v1/who")
    assert status == 200
    who = json.loads(body)["who"]
    users = {process["uid"] for process in who["processes"].values()}
    if sees in ("everything", "names"):
        assert {ALICE, lab_people.BOB.uid, lab_people.CHEN.uid} <= users
        # Command lines are shown to those that see all, and to the user whose process it is.
        commands = {process["uid"] for process in who["processes"].values() if process["command"] is not None}
        if sees == "names":
            assert commands <= {ALICE}
        else:
            assert lab_people.BOB.uid in commands
    else:
        assert users == ({ALICE} if sees == "own" else set())
        named = who["owners"].keys() - {"user/others"}
        assert named == ({"label/alice"} if sees == "own" else set()), "no other owner"


def _plain_page(get: Get, sees: str) -> None:
    """The plain page never names an owner."""
    status, body = get("/")
    assert status == 200
    assert "alice" not in body
    assert get("/api/v1/who")[0] == 404
