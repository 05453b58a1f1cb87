"""Two commands of one user share a GPU, from one shell: each takes its own turns and has its own account."""

import json
import os
from typing import Any

import pytest

from fakes.shared_gpu import MATMUL
from shared_node import SharedNode, shared_node
from waiting import until

GIB = 1 << 30


def job(node: SharedNode, id: int) -> Any:
    return json.loads(node.agent.get(f"/api/v1/job?id=lease-{id}")[1])["job"]


@pytest.mark.long
def test_each_has_its_turns_and_its_own_account() -> None:
    with shared_node() as node:
        socket = node.socket.with_name("leases.sock")
        node.start_agent(environment={"GPUCOMMONS_LEASES_SOCKET": str(socket)})
        programs = [node.leased(socket, MATMUL[4096], size * GIB, session=False) for size in (2, 3)]
        node.wait_for(lambda: all(node.client(each) for each in programs), "both take part")
        keys = {node.client(each)["program"] for each in programs}  # type: ignore[index]
        assert keys == {f"lease:1@{os.getuid()}", f"lease:2@{os.getuid()}"}
        node.wait_for(lambda: node.way() == "turns", "they take turns")

        def billed() -> bool:
            found = [job(node, id) for id in (1, 2)]
            return all(each is not None and each["total"]["active_gpu_hours"] > 0 for each in found)

        until(billed, "both have worked")
        assert [job(node, id)["peak_memory_bytes"] for id in (1, 2)] == [2 * GIB, 3 * GIB]
