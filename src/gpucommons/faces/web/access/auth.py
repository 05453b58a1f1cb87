"""Basic authentication against bcrypt hashes. A check is slow by design: it runs off the event loop, and a success
is remembered.

Checks wait in one queue for each origin, and the origins take turns: an origin that guesses passwords delays itself,
not others. No password is kept: a success is remembered as a keyed hash, with a key that only this process has.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import secrets
from collections import OrderedDict, deque
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from gpucommons.base.threads import ThreadsExhausted, in_daemon_thread

log = logging.getLogger(__name__)

_REMEMBERED = 4096
_STOP_S = 2.0
# bcrypt uses no more bytes; htpasswd truncates at the same length.
_BCRYPT_BYTES = 72


class PasswordVerdict(Enum):
    ALLOWED = "allowed"
    DENIED = "denied"
    BUSY = "busy"


class BasicCredentials(NamedTuple):
    user: str
    password: bytes


def parse_authorization(header: str) -> BasicCredentials | None:
    """The credentials of an Authorization header; None unless it is well-formed Basic."""
    scheme, _, encoded = header.strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(encoded.strip().encode("ascii"), validate=True)
        user, colon, password = decoded.partition(b":")
        return BasicCredentials(user.decode(), password) if colon else None
    except (UnicodeError, binascii.Error):
        return None


class _Check(NamedTuple):
    mark: bytes
    users: Mapping[str, bytes]
    credentials: BasicCredentials
    verdict: "asyncio.Future[PasswordVerdict]"


class Authenticator:
    """`max_pending` limits the waiting checks, and `max_pending_of_origin` those of one origin; beyond them the verdict
    is BUSY. So it is where no thread can be started for the check."""

    def __init__(self, max_pending: int = 512, max_pending_of_origin: int = 128) -> None:
        self._max_pending = max_pending
        self._max_pending_of_origin = max_pending_of_origin
        self._key = secrets.token_bytes(32)
        self._allowed: OrderedDict[bytes, None] = OrderedDict()
        self._pending: dict[bytes, asyncio.Future[PasswordVerdict]] = {}
        self._queues: OrderedDict[str, deque[_Check]] = OrderedDict()
        self._worker: asyncio.Task[None] | None = None

    def remembers(self, users: Mapping[str, bytes], credentials: BasicCredentials) -> bool:
        """Whether these credentials were accepted before, against the same hash. Takes microseconds."""
        mark = self._mark(users, credentials)
        if mark not in self._allowed:
            return False
        self._allowed.move_to_end(mark)
        return True

    async def check(
        self, users: Mapping[str, bytes], credentials: BasicCredentials, origin: str = ""
    ) -> PasswordVerdict:
        mark = self._mark(users, credentials)
        verdict = self._pending.get(mark)
        if verdict is None:
            queue = self._queues.get(origin, deque())
            if len(self._pending) >= self._max_pending or len(queue) >= self._max_pending_of_origin:
                return PasswordVerdict.BUSY
            verdict = self._pending[mark] = asyncio.get_running_loop().create_future()
            queue.append(_Check(mark, users, credentials, verdict))
            self._queues[origin] = queue
            if self._worker is None or self._worker.done():
                self._worker = asyncio.create_task(self._work(), name="web-passwords")
        # Shielded: another peer can wait for the same check when this one disconnects.
        return await asyncio.shield(verdict)

    async def stop(self) -> None:
        """Refuse the waiting checks and wait for the running one: the exit of the process would abort inside bcrypt."""
        for queue in self._queues.values():
            for check in queue:
                del self._pending[check.mark]
                check.verdict.set_result(PasswordVerdict.DENIED)
        self._queues.clear()
        if self._worker is not None:
            await asyncio.wait([self._worker], timeout=_STOP_S)

    async def _work(self) -> None:
        """One check at a time: a burst of wrong passwords costs one core, not all of them."""
        while self._queues:
            origin, queue = self._queues.popitem(last=False)
            check = queue.popleft()
            if queue:
                self._queues[origin] = queue
            verdict = PasswordVerdict.DENIED
            try:
                if await self._matches(check.users, check.credentials):
                    verdict = PasswordVerdict.ALLOWED
            except ThreadsExhausted as error:
                log.warning("a password could not be checked: %s", error)
                verdict = PasswordVerdict.BUSY
            except Exception:
                log.exception("checking a password failed; the peer is refused")
            finally:
                # Remembered here and not by the peer that waits: it may have disconnected.
                if verdict is PasswordVerdict.ALLOWED:
                    self._remember(check.mark)
                del self._pending[check.mark]
                if not check.verdict.done():
                    check.verdict.set_result(verdict)

    def _remember(self, mark: bytes) -> None:
        self._allowed[mark] = None
        while len(self._allowed) > _REMEMBERED:
            self._allowed.popitem(last=False)

    async def _matches(self, users: Mapping[str, bytes], credentials: BasicCredentials) -> bool:
        user_hash = users.get(credentials.user)
        # An unknown name takes as long as a known one, so that the time does not reveal which names exist.
        password_hash = user_hash if user_hash is not None else max(users.values(), key=_cost)
        matches = await in_daemon_thread(lambda: _bcrypt_matches(credentials.password, password_hash))
        return matches and user_hash is not None

    def _mark(self, users: Mapping[str, bytes], credentials: BasicCredentials) -> bytes:
        """Depends on the stored hash, so that a changed password invalidates the remembered success."""
        user_hash = users.get(credentials.user, b"")
        message = b"\0".join((user_hash, credentials.user.encode(), credentials.password[:_BCRYPT_BYTES]))
        return hmac.digest(self._key, message, hashlib.sha256)


def _cost(password_hash: bytes) -> int:
    return int(password_hash.split(b"$")[2])


def _bcrypt_matches(password: bytes, password_hash: bytes) -> bool:
    # Imported here: most agents have no passwords.
    import bcrypt

    try:
        return bcrypt.checkpw(password[:_BCRYPT_BYTES], password_hash)
    except ValueError:
        return False
