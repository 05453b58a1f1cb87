"""A client of nvshare without a pod has the same name, by owner and command, on every face of a running agent."""

import getpass
import json
from pathlib import Path
from typing import Any

import pytest

from fakes.shared_gpu import MATMUL, SharedGpu
from parsing import parsed
from running import RunningAgent, command, running_agent
from waiting import until


def clients(agent: RunningAgent) -> dict[str, Any]:
    turns = json.loads(agent.get("/api/v1/turns")[1])["turns"]
    return turns["clients"] if turns else {}


@pytest.mark.long
def test_a_client_is_named_by_owner_and_command(tmp_path: Path) -> None:
    socket = tmp_path / "s" / "s.sock"
    socket.parent.mkdir()
    with SharedGpu(tmp_path / "fakes") as shared:
        environment = {
            **shared.environment(),
            "GPUCOMMONS_SCHEDULER_SOCKET": str(socket),
            "GPUCOMMONS_SCHEDULER_XPUSHARE_SOCKET": "",
        }
        with running_agent("--scheduler", environment=environment) as agent:
            client = shared.nvshare_client(socket, MATMUL[512])
            name = f"{getpass.getuser()} · client.py (pid {client.pid})"
            id = until(lambda: next((id for id, row in clients(agent).items() if row["name"] == name), None), name)

            def status() -> str:
                return command("scheduler", "status", "--socket", str(socket)).stdout

            # Between two turns it is idle, and not in the text.
            shown = until(lambda: text if name in (text := status()) else None)
            assert id not in shown, "a name with a pid is enough"
            assert "none/none" not in shown
            explained = command("scheduler", "explain", f"pid:{client.pid}", "--socket", str(socket)).stdout
            assert explained.startswith(f"{name} on GPU 0")
            series = parsed(agent.get("/metrics/gpucommons")[1])
            billed = [
                dict(labels) for metric, labels in series if metric.startswith("gpucommons_sharing_client_billed")
            ]
            assert [labels["name"] for labels in billed] == [name]
            nvshare = parsed(agent.get("/metrics/nvshare")[1])
            info = [dict(labels) for metric, labels in nvshare if metric == "nvshare_client_info"]
            assert [(labels["namespace"], labels["pod"]) for labels in info] == [("none", "none")]
