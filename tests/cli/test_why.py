"""`gpucommons why` and `me` for requests that wait in the queue of leases."""

import getpass
import json
from pathlib import Path
from typing import Any

import pytest

from gpucommons.cli.why import own_clients
from leases.test_run import SMALL, Lab
from waiting import until


@pytest.mark.long
def test_a_request_that_waits_is_explained(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.environment |= {"RUNTIME_DIRECTORY": str(tmp_path), "GPUCOMMONS_WEB_LISTEN": ""}
    with lab.agent():
        try:
            # The lab has three free devices of this size.
            for number in range(5):
                lab.start("run", *SMALL, "--name", f"job-{number}", "--", "sleep", "600")

            def waiting() -> Any:
                rows = lab.queue()["waiting"]
                return rows if len(rows) == 2 else None

            rows = until(waiting, "two requests wait")
            first, last = sorted(rows, key=lambda id: rows[id]["position"])

            def explained() -> Any:
                """The answer is that of the last snapshot: a wait is in the next one."""
                status, out, _ = lab.command("why", "--json")
                return out if status == 0 and json.loads(out)["requests"].keys() == rows.keys() else None

            found = json.loads(until(explained, "both are explained"))["requests"]
            assert {id: row["behind"] for id, row in found.items()} == {first: [], last: [first]}
            status, out, _ = lab.command("why", rows[last]["name"])
            assert status == 0
            assert out.startswith(f"request {last} ({rows[last]['name']}) has been waiting for ")
            assert "an earlier request of the same user comes first" in out
            assert f"place 2 of 2; behind request {first} of {getpass.getuser()}; " in out
            blockers = found[first]["blockers"]
            assert blockers
            assert all(each["users"] for each in blockers), "also those that are held without a lease"
            status, out, _ = lab.command("why", first)
            assert f"GPU {blockers[0]['slot']} is held by {blockers[0]['users'][0]}" in out
            status, out, _ = lab.command("why", getpass.getuser())
            assert (status, out.count("has been waiting for ")) == (0, 2), "by user"
            status, out, err = lab.command("me", "--json")
            assert (status, err) == (0, "")
            assert set(json.loads(out)["me"]["requests"]) == {first, last}
            status, out, _ = lab.command("me")
            assert out.count("wait: request ") == 2
        finally:
            for process in lab.started:
                process.kill()
                process.communicate()


def test_a_pod_that_runs_as_root_is_not_roots_own_program() -> None:
    def client(uid: int, pod: str, wait: object = None) -> dict[str, object]:
        return {"uid": uid, "pod": pod, "wait": wait}

    clients = {"a": client(0, "none"), "b": client(0, "serve-0"), "c": client(7, "none"), "d": client(0, "none", {})}
    assert own_clients({"clients": clients}, 0) == ["d", "a"]
