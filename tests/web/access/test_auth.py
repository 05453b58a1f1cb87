"""Basic authentication: valid, invalid, unknown and remembered credentials, and too many checks at once."""

import asyncio
import base64
import threading

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.web.access import auth
from gpucommons.web.access.auth import Authenticator, BasicCredentials, PasswordVerdict, parse_authorization
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
