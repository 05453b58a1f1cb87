"""The web configuration in force: read at the start, and again when one of its files changes.

An invalid file at the start is an error. After an invalid change the previous configuration stays, with one warning.
A request only reads `settings`.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpucommons.base.threads import ThreadsExhausted, in_daemon_thread
from gpucommons.faces.web.access.tls import Tls, build_tls
from gpucommons.faces.web.access.web_config import RateLimit, WebConfigError, read_web_config

log = logging.getLogger(__name__)

Fingerprint = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class WebConfigSettings:
    tls: Tls | None = None
    users: Mapping[str, bytes] = field(default_factory=dict)
    rate_limit: RateLimit | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def authenticates(self) -> bool:
        """Whether every TCP peer needs a password or a certificate."""
        return bool(self.users) or (self.tls is not None and self.tls.requires_certificate)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """One attempt to read: the files, their fingerprints before the read, and the result."""

    files: tuple[Path, ...]
    fingerprint: Fingerprint
    settings: WebConfigSettings | None
    error: str = ""


class WebConfigFile:
    """Without a file, `settings` is the open default and never changes."""

    def __init__(self, path: Path | None, poll_s: float = 3.0) -> None:
        self._path = path
        self._poll_s = poll_s
        self._last: _Loaded | None = None
        self._reloading = asyncio.Lock()
        self.settings = WebConfigSettings()
        self.ok: bool | None = None

    async def load(self) -> None:
        """The first read. Raises WebConfigError."""
        if self._path is None:
            return
        path = self._path
        loaded = await in_daemon_thread(lambda: _load(path, (path,), may_be_empty=True))
        if loaded.settings is None:
            raise WebConfigError(loaded.error)
        self._last, self.settings, self.ok = loaded, loaded.settings, True

    async def watch(self) -> None:
        is_exhausted = False
        while self._path is not None:
            await asyncio.sleep(self._poll_s)
            try:
                await self.reload_if_changed()
                is_exhausted = False
            except ThreadsExhausted as error:
                if not is_exhausted:
                    log.warning("the web configuration cannot be checked for changes; the current one stays: %s", error)
                is_exhausted = True
            except Exception:
                log.exception("checking the web configuration for changes failed; the current one stays in force")

    async def reload_if_changed(self) -> bool:
        """Whether a file has changed, valid or not."""
        if self._path is None or self._last is None:
            return False
        async with self._reloading:
            last = self._last
            now = await in_daemon_thread(lambda: _fingerprint(last.files))
            if now == last.fingerprint:
                return False
            await self._replace(self._path, last.files)
        return True

    async def reload(self) -> None:
        """Read the files again, changed or not."""
        if self._path is None:
            log.info("no web configuration to reload: web.config_file is empty")
        elif self._last is not None:
            async with self._reloading:
                await self._replace(self._path, self._last.files)

    async def _replace(self, path: Path, previous_files: tuple[Path, ...]) -> None:
        # An empty file is one that is being written or that a full disk truncated: it must not remove the passwords.
        self._last = loaded = await in_daemon_thread(lambda: _load(path, previous_files, may_be_empty=False))
        if loaded.settings is None:
            self.ok = False
            log.warning("the changed web configuration is invalid; the previous one stays in force: %s", loaded.error)
        else:
            self.settings, self.ok = loaded.settings, True
            log.info("reloaded the web configuration %s", path)


def _load(path: Path, files: tuple[Path, ...], *, may_be_empty: bool) -> _Loaded:
    # Every fingerprint is taken before its file is read, so that the next check sees a change in between.
    fingerprint = _fingerprint(files)
    try:
        config = read_web_config(path, may_be_empty=may_be_empty)
        tls = None
        if config.tls is not None:
            files = (path, *config.tls.files)
            fingerprint = (fingerprint[0], *_fingerprint(config.tls.files))
            tls = build_tls(config.tls, path)
    except WebConfigError as error:
        return _Loaded(files, fingerprint, None, str(error))
    return _Loaded(files, fingerprint, WebConfigSettings(tls, config.users, config.rate_limit, config.headers))


def _fingerprint(files: tuple[Path, ...]) -> Fingerprint:
    return tuple(_stat(file) for file in files)


def _stat(file: Path) -> tuple[str, int, int, int]:
    try:
        status = os.stat(file)
    except OSError:
        return str(file), -1, -1, -1
    return str(file), status.st_ino, status.st_mtime_ns, status.st_size
