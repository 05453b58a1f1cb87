"""Files and sockets that the agent makes in directories where others may write: no link of theirs is followed."""

import os
import stat
from pathlib import Path

import pytest

from gpucommons.base import unix_listener
from gpucommons.base.files import creation_mode, open_state_file, replace_state_file
from gpucommons.base.unix_listener import listen


def mode_of(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_a_socket_has_its_mode_from_the_start_and_no_chmod_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between bind and chmod another user could put a link in the place of the socket."""
    victim = tmp_path / "shadow"
    victim.write_text("secret")
    victim.chmod(0o600)
    path = tmp_path / "shared" / "agent.sock"
    bind = unix_listener.UnixListener.bind

    def bind_and_swap(listener: unix_listener.UnixListener, address: str) -> None:
        bind(listener, address)
        seen.append(mode_of(path))
        os.unlink(path)
        path.symlink_to(victim)

    seen: list[int] = []
    monkeypatch.setattr(unix_listener.UnixListener, "bind", bind_and_swap)
    before = os.umask(0o077)
    try:
        listen(str(path), mode=0o666).close()
        assert os.umask(0o077) == 0o077, "the umask is as before"
    finally:
        os.umask(before)
    assert seen == [0o666]
    assert mode_of(victim) == 0o600
    assert mode_of(path.parent) == 0o711


def test_a_draft_is_never_written_through_a_link(tmp_path: Path) -> None:
    victim, state = tmp_path / "victim", tmp_path / "leases.json"
    victim.write_text("kept")
    (tmp_path / "leases.json.new").symlink_to(victim)
    replace_state_file(state, b"{}", 0o600)
    assert (victim.read_text(), state.read_bytes(), state.is_symlink()) == ("kept", b"{}", False)
    assert mode_of(state) == 0o600
    replace_state_file(state, b"{1}")
    assert state.read_bytes() == b"{1}"


def test_a_link_in_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    link = tmp_path / "events.jsonl"
    link.symlink_to(victim)
    os.close(open_state_file(link, os.O_WRONLY))
    tmp_path.chmod(0o777)
    with pytest.raises(OSError, match="symbolic links"):
        open_state_file(link, os.O_WRONLY)


def test_the_mode_is_exact_whatever_the_umask_is(tmp_path: Path) -> None:
    with creation_mode(0o604):
        (tmp_path / "file").touch(0o666)
    assert mode_of(tmp_path / "file") == 0o604
