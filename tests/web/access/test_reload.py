"""The web configuration: an error if invalid at the start, kept after an invalid change, reloaded on a change."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from certificates import Authority
from gpucommons.faces.web.access.reload import WebConfigFile
from gpucommons.faces.web.access.web_config import WebConfigError
from peers import run

LIMITED = "rate_limit: {interval: 1s, burst: 5}"


def replace_file(path: Path, text: str) -> None:
    """Replaces the file by a new one under the old name, as configuration management does."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)


def test_without_a_file_access_is_open() -> None:
    async def check() -> None:
        config = WebConfigFile(None)
        await config.load()
        assert config.ok is None
        assert config.settings.tls is None
        assert not await config.reload_if_changed()
        await config.watch()  # ends at once: there is nothing to watch

    run(check())


def test_an_invalid_file_at_the_start_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "web.yml"
    path.write_text("rate_limit: {interval: soon}")
    with pytest.raises(WebConfigError, match=r"rate_limit\.interval"):
        run(WebConfigFile(path).load())
    with pytest.raises(WebConfigError, match="cannot be read"):
        run(WebConfigFile(tmp_path / "missing.yml").load())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: replace_file(path, "nonsense: ["),
        lambda path: path.write_text("unknown_key: 1"),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: path.write_text(""),
        lambda path: replace_file(path, "# users: none\n"),
    ],
    ids=["yaml", "key", "gone", "folder", "empty", "comments"],
)
def test_an_invalid_change_keeps_the_old_configuration_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], object]
) -> None:
    path = tmp_path / "web.yml"
    path.write_text(LIMITED)

    async def check() -> None:
        config = WebConfigFile(path)
        await config.load()
        before = config.settings
        assert config.ok is True
        assert not await config.reload_if_changed()

        spoil(path)
        with caplog.at_level(logging.WARNING):
            assert await config.reload_if_changed()
            assert not await config.reload_if_changed(), "the same invalid file is not a change"
        assert config.settings is before
        assert config.ok is False
        assert len(caplog.records) == 1
        assert str(path) in caplog.text

        if path.is_dir():
            path.rmdir()
        replace_file(path, LIMITED.replace("5", "9"))
        assert await config.reload_if_changed()
        assert config.ok is True
        assert config.settings.rate_limit is not None
        assert config.settings.rate_limit.burst == 9

    run(check())


def test_a_new_certificate_in_the_same_file_is_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server", "localhost")
    path = tmp_path / "web.yml"
    path.write_text("tls_server_config: {cert_file: server.pem, key_file: server.key}")

    async def check() -> None:
        config = WebConfigFile(path)
        await config.load()
        first = config.settings.tls
        old_key = pair.key_file.read_text()
        authority.issue("server", "localhost")
        assert await config.reload_if_changed()
        second = config.settings.tls
        assert second is not None
        assert second is not first

        # The certificate is replaced before its key: the old pair stays in use, and the key is a change of its own.
        new_key = pair.key_file.read_text()
        replace_file(pair.key_file, old_key)
        assert await config.reload_if_changed()
        assert (config.settings.tls, config.ok) == (second, False)
        assert "is not the key of" in caplog.text
        replace_file(pair.key_file, new_key)
        assert await config.reload_if_changed()
        assert config.ok is True
        assert config.settings.tls is not second

    run(check())


def test_files_that_a_change_adds_are_watched(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("server", "localhost")
    path = tmp_path / "web.yml"
    path.write_text(LIMITED)

    async def check() -> None:
        config = WebConfigFile(path)
        await config.load()
        replace_file(path, "tls_server_config: {cert_file: late.pem, key_file: late.key}")
        assert await config.reload_if_changed()
        assert (config.ok, config.settings.tls) == (False, None)
        authority.issue("late", "localhost")
        assert await config.reload_if_changed(), "the missing certificate was created"
        assert config.ok is True
        assert config.settings.tls is not None

    run(check())


def test_an_empty_mapping_removes_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "web.yml"
    path.write_text(LIMITED)

    async def check() -> None:
        config = WebConfigFile(path)
        await config.load()
        replace_file(path, "{}")
        assert await config.reload_if_changed()
        assert (config.ok, config.settings.rate_limit) == (True, None)

    run(check())
