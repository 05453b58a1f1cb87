"""Basic auth against bcrypt hashes: slow by design, so off the event loop, bounded, and remembered.

Never keeps a password: a success is remembered as a keyed hash whose key dies with the process.
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
# bcrypt reads no further, and htpasswd cuts there too.
_BCRYPT_BYTES = 72


class PasswordVerdict(Enum):
    ALLOWED = "allowed"
    DENIED = "denied"
    BUSY = "busy"


class BasicCredentials(NamedTuple):
    user: str
    password: bytes


def parse_authorization(header: str) -> BasicCredentials | None:
    """The credentials of an Authorization header; None for anything that is not well-formed Basic."""
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
    """`max_pending` bounds the checks that wait: beyond it a peer is told to come back."""

    def __init__(self, max_pending: int = 32) -> None:
        self._max_pending = max_pending
        self._key = secrets.token_bytes(32)
        self._allowed: OrderedDict[bytes, None] = OrderedDict()
        self._pending: dict[bytes, asyncio.Task[bool]] = {}
        # One at a time: a burst of wrong passwords costs one core, not all of them.
        self._worker = asyncio.Lock()

    def remembers(self, users: Mapping[str, bytes], credentials: BasicCredentials) -> bool:
        """Whether exactly these have been checked before, against the same hash. Costs microseconds."""
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
        # Shielded: others may wait for the same check when this peer goes away.
        if not await asyncio.shield(checking):
            return PasswordVerdict.DENIED
        self._allowed[mark] = None
        while len(self._allowed) > _REMEMBERED:
            self._allowed.popitem(last=False)
        return PasswordVerdict.ALLOWED

    async def _matches(self, users: Mapping[str, bytes], credentials: BasicCredentials) -> bool:
        known = users.get(credentials.user)
        # An unknown name costs what a known one costs, so that the time does not tell which names exist.
        password_hash = known if known is not None else max(users.values(), key=_cost)
        async with self._worker:
            matches = await in_daemon_thread(lambda: _bcrypt_matches(credentials.password, password_hash))
        return matches and known is not None

    def _mark(self, users: Mapping[str, bytes], credentials: BasicCredentials) -> bytes:
        """Bound to the hash, so that a changed password forgets the old one by itself."""
        known = users.get(credentials.user, b"")
        message = b"\0".join((known, credentials.user.encode(), credentials.password))
        return hmac.digest(self._key, message, hashlib.sha256)


def _cost(password_hash: bytes) -> int:
    return int(password_hash.split(b"$")[2])


def _bcrypt_matches(password: bytes, password_hash: bytes) -> bool:
    # Not at the top: most agents know no passwords.
    import bcrypt

    try:
        return bcrypt.checkpw(password[:_BCRYPT_BYTES], password_hash)
    except ValueError:
        return False
