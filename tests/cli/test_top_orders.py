"""`gpucommons top` parks and wakes a program: a real agent with its pauser, a program on a fake GPU, and keys."""

import asyncio
from pathlib import Path
from typing import cast

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from fakes.shared_gpu import MATMUL
from gpucommons.cli.agent_client import AgentAddress
from gpucommons.cli.top_app import Confirm, Top
from gpucommons.cli.top_feed import AgentFeed
from gpucommons.cli.top_orders import carry_out
from gpucommons.pauser.backend import State
from shared_node import shared_node

MIB = 1 << 20


async def question(pilot: Pilot[None]) -> str:
    while not isinstance(pilot.app.screen, Confirm):
        await pilot.pause()
    return str(pilot.app.screen.query_one("#question", Static).render())


async def row_with(pilot: Pilot[None], text: str) -> None:
    """Wait for a row with this text, and put the cursor on it."""
    table = cast("DataTable[object]", pilot.app.query_one("#rows", DataTable))
    while True:
        rows = [" ".join(str(cell) for cell in table.get_row(key)) for key in table.rows]
        found = [place for place, row in enumerate(rows) if text in row]
        if found:
            table.move_cursor(row=found[0])
            return
        await pilot.pause(0.1)


@pytest.mark.long
def test_park_and_wake_after_a_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_node() as node:
        api = tmp_path / "api.sock"
        node.start_agent(environment={"GPUCOMMONS_WEB_SOCKET": f"unix:{api}"})
        monkeypatch.setenv("GPUCOMMONS_SCHEDULER_SOCKET", str(node.socket))
        program = node.program(MATMUL[512], memory_bytes=64 * MIB)
        node.wait_for(lambda: node.standing(program), "the agent sees it")

        def is_parked() -> bool:
            return program.program.state is State.CHECKPOINTED

        async def scenario() -> None:
            app = Top([AgentFeed(AgentAddress(f"unix:{api}"))])
            async with app.run_test(size=(100, 30)) as pilot:
                await row_with(pilot, str(program.pid))
                await pilot.press("P")
                assert f"Park the program of pid {program.pid}: its GPU memory goes" in await question(pilot)
                await pilot.press("n")
                await pilot.pause(0.5)
                assert not is_parked(), "only y agrees"
                await pilot.press("P")
                await question(pilot)
                await pilot.press("y")
                while not is_parked():
                    await pilot.pause(0.1)
                await pilot.press("w")
                await row_with(pilot, "parked")
                await pilot.press("W")
                assert f"Wake the program of pid {program.pid}" in await question(pilot)
                await pilot.press("y")
                while is_parked():
                    await pilot.pause(0.1)
                await pilot.press("q")

        async def bounded() -> None:
            async with asyncio.timeout(120):
                await scenario()

        asyncio.run(bounded())
        said, done = carry_out("park", 1, None)
        assert (said.startswith("no such program '1'"), done) == (True, False)
        monkeypatch.setenv("GPUCOMMONS_SCHEDULER_SOCKET", str(tmp_path / "nowhere.sock"))
        said, done = carry_out("wake", program.pid, None)
        assert ("the scheduler does not run here" in said, done) == (True, False)
