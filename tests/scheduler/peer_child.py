"""A function in a child process with the credentials of another user. For tests that run as root.

The child is forked by a server without threads: the test's own process has those of the scheduler, whose locks a fork
would copy as they are.
"""

import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

_PATIENCE_S = 60.0
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pytest", "scheduler.served", "scheduler.test_admins"])


class Peer(NamedTuple):
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def as_peer(peer: Peer, function: Callable[[], object], meanwhile: Callable[[], None] = lambda: None) -> str:
    """Calls the function, which must be importable, in a child process. A text that it returns is returned.

    The child keeps what the function returns, and stays until `meanwhile` has returned in this process. An error in the
    child fails the test with its traceback.
    """
    ours, theirs = _FORKS.Pipe()
    child = _FORKS.Process(target=_run, args=(peer, function, theirs))
    child.start()
    theirs.close()
    with ours:
        try:
            try:
                meanwhile()
            except BaseException as error:
                # The child's error explains ours.
                if ours.poll() and (said := ours.recv())[0]:
                    raise AssertionError(said[0]) from error
                raise
            assert ours.poll(_PATIENCE_S), "the child does not return"
            failed, text = ours.recv()
            assert not failed, failed
            ours.send("end")
        finally:
            child.join(1)
            child.kill()
            child.join(10)
    return str(text)


def _run(peer: Peer, function: Callable[[], object], pipe: Connection) -> None:
    try:
        os.setgroups(peer.groups)
        os.setgid(peer.gid)
        os.setuid(peer.uid)
        kept = function()
        pipe.send(("", kept if isinstance(kept, str) else ""))
    except BaseException:
        pipe.send((traceback.format_exc(), ""))
        return
    pipe.recv()
