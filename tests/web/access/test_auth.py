"""Basic authentication: valid, invalid, unknown and remembered credentials, and too many checks at once."""

import asyncio
import base64
import threading

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.faces.web.access import auth
from gpucommons.faces.web.access.auth import Authenticator, BasicCredentials, PasswordVerdict, parse_authorization
from peers import run, until


def hashed(password: bytes) -> bytes:
    return bcrypt.hashpw(password, bcrypt.gensalt(rounds=4))


USERS = {"alice": hashed(b"wonderland"), "bob": hashed("pässword".encode())}


def basic(text: bytes) -> str:
    return "Basic " + base64.b64encode(text).decode()


@pytest.mark.parametrize(
    ("header", "credentials"),
    [
        (basic(b"alice:wonderland"), BasicCredentials("alice", b"wonderland")),
        (basic(b"alice:a:b:c"), BasicCredentials("alice", b"a:b:c")),
        (basic(b":"), BasicCredentials("", b"")),
        (basic(b"alice:\xff\x00"), BasicCredentials("alice", b"\xff\x00")),
        (basic(b"a:b").replace("Basic", "bAsIc"), BasicCredentials("a", b"b")),
        (basic(b"alice"), None),
        (basic(b"\xff:b"), None),
        ("Basic", None),
        ("Basic ???", None),
        ("Bearer " + "x" * 20, None),
        ("", None),
    ],
)
def test_parsing_an_authorization_header(header: str, credentials: BasicCredentials | None) -> None:
    assert parse_authorization(header) == credentials


@given(st.text() | st.text().map(lambda text: "Basic " + text) | st.binary().map(basic))
def test_any_header_is_credentials_or_none(header: str) -> None:
    parse_authorization(header)


@pytest.mark.parametrize(
    ("user", "password", "verdict"),
    [
        ("alice", b"wonderland", PasswordVerdict.ALLOWED),
        ("bob", "pässword".encode(), PasswordVerdict.ALLOWED),
        ("alice", b"Wonderland", PasswordVerdict.DENIED),
        ("alice", b"", PasswordVerdict.DENIED),
        ("alice", b"wonder\0land", PasswordVerdict.DENIED),
        ("alice", b"x" * 10_000, PasswordVerdict.DENIED),
        ("mallory", b"wonderland", PasswordVerdict.DENIED),
        ("", b"", PasswordVerdict.DENIED),
    ],
)
def test_verdicts(user: str, password: bytes, verdict: PasswordVerdict) -> None:
    async def check() -> None:
        authenticator = Authenticator()
        credentials = BasicCredentials(user, password)
        assert not authenticator.remembers(USERS, credentials)
        assert await authenticator.check(USERS, credentials) is verdict
        assert authenticator.remembers(USERS, credentials) is (verdict is PasswordVerdict.ALLOWED)

    run(check())


def test_long_passwords_are_truncated_as_bcrypt_does() -> None:
    users = {"alice": hashed(b"x" * 72)}
    assert run(Authenticator().check(users, BasicCredentials("alice", b"x" * 100))) is PasswordVerdict.ALLOWED


def test_a_changed_password_or_a_removed_user_is_not_remembered() -> None:
    async def check() -> None:
        authenticator = Authenticator()
        credentials = BasicCredentials("alice", b"wonderland")
        await authenticator.check(USERS, credentials)
        assert not authenticator.remembers({**USERS, "alice": hashed(b"other")}, credentials)
        assert not authenticator.remembers({"bob": USERS["bob"]}, credentials)

    run(check())


def test_an_unknown_user_takes_a_check_too(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[bytes] = []
    real = bcrypt.checkpw

    def counting(password: bytes, password_hash: bytes) -> bool:
        checked.append(password_hash)
        return real(password, password_hash)

    monkeypatch.setattr(bcrypt, "checkpw", counting)
    run(Authenticator().check(USERS, BasicCredentials("mallory", b"x")))
    assert len(checked) == 1
    assert checked[0] in USERS.values()


def test_checks_run_off_the_loop_one_at_a_time_with_a_bounded_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    at_once: list[str] = []
    most = 0

    def blocking(password: bytes, password_hash: bytes) -> bool:
        nonlocal most
        at_once.append(threading.current_thread().name)
        most = max(most, len(at_once))
        release.wait(20)
        at_once.pop()
        return False

    monkeypatch.setattr(bcrypt, "checkpw", blocking)

    async def check() -> None:
        authenticator = Authenticator(max_pending=3)
        waiting = [
            asyncio.create_task(authenticator.check(USERS, BasicCredentials("alice", bytes([number]))))
            for number in range(3)
        ]
        same = asyncio.create_task(authenticator.check(USERS, BasicCredentials("alice", bytes([0]))))
        await until(lambda: bool(at_once))
        await asyncio.sleep(0.05)  # time for a second one to begin, if it may
        assert await authenticator.check(USERS, BasicCredentials("alice", b"one too many")) is PasswordVerdict.BUSY
        release.set()
        assert [await task for task in (*waiting, same)] == [PasswordVerdict.DENIED] * 4
        assert most == 1

    run(check())


def test_a_peer_that_disconnects_does_not_cancel_the_check_of_another() -> None:
    async def check() -> None:
        authenticator = Authenticator()
        credentials = BasicCredentials("alice", b"wonderland")
        leaving = asyncio.create_task(authenticator.check(USERS, credentials))
        staying = asyncio.create_task(authenticator.check(USERS, credentials))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await staying is PasswordVerdict.ALLOWED

    run(check())


def test_the_memory_of_successes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "_REMEMBERED", 2)
    users = {name: hashed(b"p") for name in ("a", "b", "c")}

    async def check() -> None:
        authenticator = Authenticator()
        for name in users:
            await authenticator.check(users, BasicCredentials(name, b"p"))
        assert [authenticator.remembers(users, BasicCredentials(name, b"p")) for name in users] == [False, True, True]

    run(check())


def slow_checks(monkeypatch: pytest.MonkeyPatch, release: threading.Event) -> list[bytes]:
    """Every check waits for `release`. Returns the passwords in the order of their checks."""
    real, checked = bcrypt.checkpw, []

    def waiting(password: bytes, password_hash: bytes) -> bool:
        release.wait(20)
        checked.append(password)
        return real(password, password_hash)

    monkeypatch.setattr(bcrypt, "checkpw", waiting)
    return checked


def guess(authenticator: Authenticator, number: int, origin: str) -> "asyncio.Task[PasswordVerdict]":
    credentials = BasicCredentials("alice", b"guess %d" % number)
    return asyncio.create_task(authenticator.check(USERS, credentials, origin))


def test_origins_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    checked = slow_checks(monkeypatch, release)

    async def check() -> None:
        authenticator = Authenticator()
        guesses = [guess(authenticator, number, "192.0.2.66") for number in range(64)]
        await asyncio.sleep(0)
        right = asyncio.create_task(authenticator.check(USERS, BasicCredentials("alice", b"wonderland"), "192.0.2.1"))
        await asyncio.sleep(0)
        release.set()
        assert await right is PasswordVerdict.ALLOWED
        assert checked.index(b"wonderland") <= 2, "not behind the guesses of another origin"
        assert {await task for task in guesses} == {PasswordVerdict.DENIED}

    run(check())


def test_origins_with_many_guesses_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the first nor the last that came is served until it has no more."""
    release = threading.Event()
    checked = slow_checks(monkeypatch, release)

    async def check() -> None:
        authenticator, origins = Authenticator(), ("192.0.2.66", "192.0.2.77")
        guesses = [guess(authenticator, 8 * place + number, origins[place]) for place in (0, 1) for number in range(8)]
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(*guesses)
        numbers = [int(password.split()[1]) for password in checked]
        assert all(abs(2 * sum(number < 8 for number in numbers[:count]) - count) <= 2 for count in range(17))

    run(check())


def test_the_pending_guesses_of_one_origin_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    slow_checks(monkeypatch, release)

    async def check() -> None:
        authenticator = Authenticator(max_pending=10, max_pending_of_origin=3)
        guesses = [guess(authenticator, number, "192.0.2.66") for number in range(20)]
        await asyncio.sleep(0.05)
        busy = [task.result() for task in guesses if task.done()]
        assert set(busy) == {PasswordVerdict.BUSY}
        assert len(busy) >= 16
        other = guess(authenticator, 99, "192.0.2.1")
        await asyncio.sleep(0.05)
        assert not other.done(), "another origin is not refused"
        release.set()
        assert await other is PasswordVerdict.DENIED

    run(check())


def test_a_success_is_remembered_after_its_peer_has_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    slow_checks(monkeypatch, release)

    async def check() -> None:
        authenticator = Authenticator()
        credentials = BasicCredentials("alice", b"wonderland")
        leaving = asyncio.create_task(authenticator.check(USERS, credentials))
        await asyncio.sleep(0)
        leaving.cancel()
        release.set()
        await until(lambda: authenticator.remembers(USERS, credentials))

    run(check())


def test_variants_of_a_long_password_are_remembered_once() -> None:
    users = {"alice": hashed(b"x" * 72)}

    async def check() -> None:
        authenticator = Authenticator()
        await authenticator.check(users, BasicCredentials("alice", b"x" * 72))
        assert authenticator.remembers(users, BasicCredentials("alice", b"x" * 72 + b"more"))

    run(check())


def test_no_check_runs_after_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    checked = slow_checks(monkeypatch, release)

    async def check() -> None:
        authenticator = Authenticator()
        guesses = [guess(authenticator, number, "192.0.2.66") for number in range(5)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stopping = asyncio.create_task(authenticator.stop())
        await asyncio.sleep(0)
        assert not stopping.done(), "the running check is waited for"
        release.set()
        await stopping
        assert [await task for task in guesses] == [PasswordVerdict.DENIED] * 5
        assert len(checked) == 1

    run(check())
