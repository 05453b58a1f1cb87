"""Basic authentication against bcrypt hashes. A check is slow by design: it runs off the event loop, and a success
is remembered.

No password is kept: a success is remembered as a keyed hash, with a key that only this process has.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from gpucommons.base.threads import in_daemon_thread

_REMEMBERED = 256
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


class Authenticator:
    """`max_pending` limits the waiting checks; beyond it the verdict is BUSY."""

    def __init__(self, max_pending: int = 32) -> None:
        self._max_pending = max_pending
        self._key = secrets.token_bytes(32)
        self._allowed: OrderedDict[bytes, None] = OrderedDict()
        self._pending: dict[bytes, asyncio.Task[bool]] = {}
        # One at a time: a burst of wrong passwords costs one core, not all of them.
        self._worker = asyncio.Lock()

    def remembers(self, users: Mapping[str, bytes], credentials: BasicCredentials) -> bool:
        """Whether these credentials were accepted before, against the same hash. Takes microseconds."""
        mark = self._mark(users, credentials)
        if mark not in self._allowed:
            return False
        self._allowed.move_to_end(mark)
        return True

    async def check(self, users: Mapping[str, bytes], credentials: BasicCredentials) -> PasswordVerdict:
        mark = self._mark(users, credentials)
        checking = self._pending.get(mark)
        if checking is None:
            if len(self._pending) >= self._max_pending:
                return PasswordVerdict.BUSY
            checking = asyncio.create_task(self._matches(users, credentials))
            self._pending[mark] = checking
            checking.add_done_callback(lambda _: self._pending.pop(mark, None))
        # Shielded: another peer can wait for the same check when this one disconnects.
        if not await asyncio.shield(checking):
            return PasswordVerdict.DENIED
        self._allowed[mark] = None
        while len(self._allowed) > _REMEMBERED:
            self._allowed.popitem(last=False)
        return PasswordVerdict.ALLOWED

    async def _matches(self, users: Mapping[str, bytes], credentials: BasicCredentials) -> bool:
        known = users.get(credentials.user)
        # An unknown name takes as long as a known one, so that the time does not reveal which names exist.
        password_hash = known if known is not None else max(users.values(), key=_cost)
        async with self._worker:
            matches = await in_daemon_thread(lambda: _bcrypt_matches(credentials.password, password_hash))
        return matches and known is not None

    def _mark(self, users: Mapping[str, bytes], credentials: BasicCredentials) -> bytes:
        """Depends on the stored hash, so that a changed password invalidates the remembered success."""
        known = users.get(credentials.user, b"")
        message = b"\0".join((known, credentials.user.encode(), credentials.password))
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
