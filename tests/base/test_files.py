"""Files and sockets that the agent makes in directories where others may write: no link of theirs is followed."""

import os
import stat
from pathlib import Path

import pytest

from gpucommons.base import unix_listener
from gpucommons.base.files import creation_mode, open_state_file, replace_state_file
from gpucommons.base.state_file import StateFile
from gpucommons.base.unix_listener import listen
from gpucommons.ledger.events import read_events
from needs import needs_root


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


def test_a_link_that_comes_after_an_old_draft_was_removed_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    unlink = os.unlink

    def unlink_and_link(path: Path) -> None:
        unlink(path)
        path.symlink_to(victim)

    (tmp_path / "leases.json.new").touch()
    monkeypatch.setattr(os, "unlink", unlink_and_link)
    with pytest.raises(FileExistsError):
        replace_state_file(tmp_path / "leases.json", b"{}")
    assert victim.read_text() == "kept"


def test_a_link_in_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    link = tmp_path / "events.jsonl"
    link.symlink_to(victim)
    os.close(open_state_file(link, os.O_WRONLY))
    tmp_path.chmod(0o777)
    with pytest.raises(OSError, match="symbolic links"):
        open_state_file(link, os.O_WRONLY)


@pytest.mark.parametrize("mode", [0o1777, 0o775], ids=["all", "group"])
def test_what_another_user_has_put_there_is_not_written(tmp_path: Path, mode: int) -> None:
    """A link, a pipe, and a file that its owner could read; root's own file is used."""
    needs_root()
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, 0, 20010)
    shared.chmod(mode)
    os.mkfifo(shared / "pipe")
    (shared / "theirs").touch()
    (shared / "link").symlink_to(tmp_path / "target")
    for path in shared.iterdir():
        os.lchown(path, 20010, 20010)
        with pytest.raises(OSError, match=r"another user|symbolic|denied"):
            open_state_file(path, os.O_RDWR)
    os.close(open_state_file(shared / "own", os.O_RDWR))
    os.close(open_state_file(shared / "own", os.O_RDWR))
    assert not (tmp_path / "target").exists()


def test_a_state_directory_of_another_user_is_used_with_that_users_files(tmp_path: Path) -> None:
    needs_root()
    state = tmp_path / "state"
    state.mkdir()
    (state / "record").touch()
    for path in (state, state / "record"):
        os.chown(path, 20010, 20010)
    os.close(open_state_file(state / "record", os.O_RDWR))


def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "record")
    os.mkfifo(tmp_path / "events.jsonl")
    assert StateFile(tmp_path / "record", "test", "nothing").read(dict, {"empty": True}) == {"empty": True}
    assert list(read_events(tmp_path / "events.jsonl")) == []


def test_the_mode_is_exact_whatever_the_umask_is(tmp_path: Path) -> None:
    with creation_mode(0o604):
        (tmp_path / "file").touch(0o666)
    assert mode_of(tmp_path / "file") == 0o604
