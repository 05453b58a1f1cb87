"""Another user at the lease socket: named by the kernel, sees users and programs, and cannot end what is not theirs."""

import json
import os
import pwd
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucommons.leases.protocol import LeaseConnection, answer_of
from leases.test_run import Lab

UID = 65534


def as_user(work: Callable[[], object]) -> Any:
    """The result of `work`, a JSON value, in a process of the other user."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(UID)
            os.setuid(UID)
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        result = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(result)


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="changes the user")
def test_another_user_gets_a_lease_and_ends_only_their_own() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        lab = Lab(directory)
        with lab.agent(), LeaseConnection([lab.socket]) as own:
            own.send({"request": "run", "name": "secret project", "program": "train.py"})
            roots = str((own.receive(10) or {})["id"])

            def work() -> object:
                with LeaseConnection([lab.socket]) as connection:
                    connection.send({"request": "run"})
                    lines = [connection.receive(10) for _ in range(2)]
                    queue = answer_of([lab.socket], {"request": "queue"})["answer"]
                    refused = answer_of([lab.socket], {"request": "cancel", "id": roots})
                    forged = answer_of([lab.socket], {"request": "resume", "id": roots, "token": "0" * 32})
                    id = (lines[0] or {})["id"]
                    cancelled = answer_of([lab.socket], {"request": "cancel", "id": id})
                return [lines[1], queue, refused, forged, cancelled, id]

            granted, queue, refused, forged, cancelled, id = as_user(work)
            assert granted["event"] == "granted"
            user = pwd.getpwuid(UID).pw_name
            assert [queue["leases"][each]["user"] for each in (roots, id)] == ["root", user]
            assert queue["leases"][roots]["name"] == "train.py", (
                "the program, as ps shows it, not the name that its user typed"
            )
            assert "secret" not in json.dumps(queue)
            assert refused["error"] == f"no lease and no request {roots} of yours; see 'gpucommons queue'"
            assert forged["unknown"]
            assert cancelled["answer"] == f"lease {id} of {user} is cancelled"
            assert list(lab.leases()) == [roots]
