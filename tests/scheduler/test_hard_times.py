"""Hostile conditions: clients that vanish, flood, stall or lie, and descriptors that run out."""

import json
import random
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from gpucommons.scheduler.policy.devices import GpuFacts
from gpucommons.scheduler.policy.state import Mode
from gpucommons.scheduler.protocol.wire import MessageType, encode
from scheduler.served import Scripted, serving

T = MessageType
HOSTILE_NAMES = ('quo"te\\', "line\nbreak\r\n", "../../../etc/passwd", "x" * 254, "{}", "\x01\x7f")


@pytest.mark.long
def test_a_thousand_clients_vanish_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, mode=Mode.SERIAL, max_connections_per_uid=2000) as served:
        crowd = [Scripted(served.path).register(f"c-{number}").ask() for number in range(1000)]
        served.until(lambda reading: len(reading.gpus[0].request_queue) == 999)
        survivor = Scripted(served.path).register("survivor").ask()
        for client in crowd:
            client.close()
        survivor.granted()
        reading = served.until(lambda reading: len(reading.clients) == 1)
        assert reading.disconnects["closed"] + reading.disconnects.get("error", 0) == 1000
        assert served.gpu().running == (survivor.id,)


def test_a_client_that_sends_single_bytes_delays_no_other(tmp_path: Path) -> None:
    with serving(tmp_path, mode=Mode.SERIAL) as served:
        slow = Scripted(served.path)
        frame = encode(2, T.REGISTER, pod="slow")
        for byte in frame[:-1]:
            slow.socket.sendall(bytes([byte]))
            if byte % 50 == 0:
                Scripted(served.path).register().ask().granted()
        slow.socket.sendall(frame[-1:])
        slow.expect(T.SCHED_ON)


@pytest.mark.long
def test_five_thousand_connects_and_closes(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        before = psutil.Process().num_fds()
        for number in range(5000):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
                visitor.connect(served.path)
                if number % 3 == 0:
                    visitor.sendall(encode(2, T.REGISTER, pod="visitor"))
                elif number % 3 == 1:
                    visitor.sendall(b"\x01\x02")
        served.until(lambda reading: sum(reading.disconnects.values()) == 5000)
        assert served.reading().connections == 0
        assert psutil.Process().num_fds() <= before + 2
        Scripted(served.path).register().ask().granted()


def test_a_client_that_does_not_read_is_closed_and_the_others_continue(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        good = Scripted(served.path).register("good").ask().granted()
        deaf = Scripted(served.path).register("deaf").ask()
        deaf.socket.settimeout(1.0)
        try:
            # Each repeated request is answered, and the answers are never read.
            while True:
                deaf.socket.sendall(encode(2, T.REQ_LOCK) * 20)
        except OSError:
            pass
        served.until(lambda reading: reading.disconnects.get("does_not_read") == 1)
        good.release().ask().granted()
        assert len(served.reading().clients) == 1


def test_the_number_of_clients_is_limited_and_silent_ones_are_closed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpucommons.scheduler.service.server.MAX_CLIENTS", 10)
    with serving(tmp_path) as served:
        clients = [Scripted(served.path).register(f"c-{number}") for number in range(6)]
        silent = [Scripted(served.path) for _ in range(4)]
        served.until(lambda reading: reading.connections == 10)
        clients += [Scripted(served.path).register(f"d-{number}") for number in range(2)]
        assert all(one.closed() for one in silent[:2])
        late = Scripted(served.path)
        late.send(T.REGISTER)
        assert late.closed(), "the last slots are reserved"
        reading = served.until(lambda reading: reading.disconnects.get("too_many_clients") == 4)
        assert len(reading.clients) == 8
        for client in clients:
            client.ask().granted()


def test_names_are_kept_whole_and_harmless(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        clients = [Scripted(served.path).register(name, name, gpu=name[:90]) for name in HOSTILE_NAMES]
        rows = {row.client_id: row for row in served.reading().clients}
        assert [rows[client.id].pod for client in clients] == list(HOSTILE_NAMES)
        assert [rows[client.id].namespace for client in clients] == list(HOSTILE_NAMES)
        for client in clients:
            client.ask().granted()


@pytest.mark.parametrize("name", ["²", "1²", "١", "9" * 90, "0:²", "GPU-²"])
def test_a_name_that_looks_like_a_number_is_a_name(tmp_path: Path, name: str) -> None:
    with serving(tmp_path) as served:
        for facts in ([], [GpuFacts("GPU-aaaa", 0)]):
            served.call(lambda facts=facts: served.server.update_gpus(facts))  # type: ignore[misc]
            Scripted(served.path).register(gpu=name).ask().granted().close()
        served.until(lambda reading: reading.connections == 0)


def test_an_unexpected_error_closes_that_connection_and_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: object) -> NoReturn:
        raise RuntimeError("a bug")

    with serving(tmp_path, mode=Mode.SERIAL) as served:
        good = Scripted(served.path).register("good").ask().granted()
        server = served.server
        # A bug is inserted where a client registers, requests, releases and disconnects, one after the other.
        for place, name in ((server._devices, "find_queue"), (server.policy, "request"), (server.policy, "release")):
            victims = [Scripted(served.path) for _ in range(3)]
            if name != "find_queue":
                victims = [victim.register() for victim in victims]
            working = getattr(place, name)
            served.call(lambda at=place, name=name: setattr(at, name, broken))  # type: ignore[misc]
            for victim in victims:
                victim.send({"find_queue": T.REGISTER, "request": T.REQ_LOCK, "release": T.LOCK_RELEASED}[name])
                assert victim.closed()
            served.call(lambda at=place, name=name, back=working: setattr(at, name, back))  # type: ignore[misc]
        reading = served.until(lambda reading: reading.connections == 1)
        assert reading.disconnects == {"internal_error": 9}
        leaving = Scripted(served.path).register("leaving")
        working = server.policy.disconnect
        served.call(lambda: setattr(server.policy, "disconnect", broken))
        leaving.close()
        served.until(lambda reading: reading.disconnects.get("closed") == 1)
        served.call(lambda: setattr(server.policy, "disconnect", working))
        good.release().ask().granted()
    logged = [record for record in caplog.records if record.exc_info]
    assert len(logged) == 1, "one place in the code raised it: it is logged once"


def test_fuzzed_connections_harm_no_other_client(tmp_path: Path) -> None:
    dice = random.Random(42)
    session = [
        encode(2, T.REGISTER, pod="p"),
        encode(2, T.REQ_LOCK),
        encode(2, T.LOCK_RELEASED),
        encode(2, T.MEM_UPDATE),
    ]
    with serving(tmp_path, mode=Mode.SERIAL) as served:
        good = Scripted(served.path).register("good")
        before = psutil.Process().num_fds()
        for round in range(600):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bad:
                bad.connect(served.path)
                data = bytearray(session[0] + b"".join(dice.choices(session, k=dice.randrange(4))))
                for _ in range(dice.randrange(4)):
                    data[dice.choice((0, 1, 2, 659, 1318, dice.randrange(len(data)))) % len(data)] = dice.randrange(256)
                del data[dice.randrange(len(data)) :]
                bad.sendall(data)
            if round % 50 == 0:
                good.ask().granted().release()
        served.until(lambda reading: sum(reading.disconnects.values()) == 600)
        assert psutil.Process().num_fds() <= before + 2
        good.ask().granted()


@contextmanager
def scheduler_process(program: str, directory: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A process of its own for a scheduler with a limit of its own, and the socket that it prints first."""
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(directory)],
        env={"PYTHONPATH": f"{root / 'src'}:{root / 'tests'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()


SCARCE = """
    import json, resource, sys
    from pathlib import Path
    from gpucommons.base.peers import Slots
    from scheduler.served import serving

    with serving(Path(sys.argv[1])) as served:
        # What is checked is the last line of defence: the cap that should keep it from ever coming so far is off.
        served.server._slots = Slots(10_000)
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
        print(served.path, flush=True)
        sys.stdin.read()
        print(json.dumps(served.reading().disconnects))
"""


@pytest.mark.long
def test_running_out_of_descriptors_ends_nothing(tmp_path: Path) -> None:
    with scheduler_process(SCARCE, tmp_path) as (process, path):
        assert process.stdin is not None
        assert process.stdout is not None
        holder = Scripted(path).register("holder").ask().granted()
        crowd = [Scripted(path) for _ in range(100)]
        assert crowd[-1].closed(), "there was no descriptor left for it"
        holder.release().ask().granted()
        for one in crowd:
            one.close()
        for _ in range(10):
            Scripted(path).register("after").ask().granted()
        holder.release().ask().granted()
        process.stdin.close()
        turned_away = json.loads(process.stdout.read())["descriptors"]
        assert 40 < turned_away < 100
    assert process.returncode == 0


FEW_DESCRIPTORS = """
    import resource, sys
    from pathlib import Path

    resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
    from scheduler.served import Scripted, serving

    with serving(Path(sys.argv[1])) as served:
        print(served.path, flush=True)
        sys.stdin.readline()
        reading = served.reading()
        rest = [open("/dev/null") for _ in range(24)]
        print(reading.connections, reading.disconnects["descriptors"], len(rest), flush=True)
"""


def test_connections_leave_descriptors_for_the_rest_of_the_agent(tmp_path: Path) -> None:
    """Of 120 descriptors 48 are kept for the rest: the 73rd connection closes the one that was silent for longest."""
    with scheduler_process(FEW_DESCRIPTORS, tmp_path) as (process, path):
        assert process.stdin is not None
        assert process.stdout is not None
        holder = Scripted(path).register("holder").ask().granted()
        crowd = [Scripted(path) for _ in range(90)]
        assert all(silent.closed() for silent in crowd[:19]), "the oldest silent ones"
        crowd[-1].register("last").ask().granted()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.read().split() == ["72", "19", "24"]
        holder.close()
        for one in crowd:
            one.close()
    assert process.returncode == 0


@pytest.mark.long
def test_two_thousand_clients_are_all_shown(tmp_path: Path) -> None:
    with serving(tmp_path, max_connections_per_uid=4000) as served:
        crowd = [Scripted(served.path).register(f"pod-{number}").ask() for number in range(2000)]
        served.until(lambda reading: len(reading.gpus[0].running) == 2000)
        rows = served.reading().clients
        assert {row.client_id for row in rows} == {client.id for client in crowd}
        assert len({row.pod for row in rows}) == 2000
        served.until(lambda _: len(served.server.reading.clients) == 2000)
