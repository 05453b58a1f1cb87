"""A program chooses its name and its arguments: they reach terminals, labels and documents only escaped."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from fakes.shared_gpu import MATMUL, SharedGpu
from gpucommons.faces.exposition.text import bounded_name
from parsing import parsed
from running import RunningAgent, command, running_agent
from waiting import until

pytestmark = pytest.mark.long

# Clears the screen, sets the title, ends the line, reverses the text, and closes what quotes open.
ARGUMENT = "x\x1b[2J\x1b]0;t\x07\n\"}\\\u202e'$(id)`id`;<b>\x9b31m"
# Its beginning as it is printed.
SHOWN = "x\\x1b[2J"
BILLED = "gpucommons_sharing_client_billed_seconds_total"
# The kernel cuts it to 15 bytes.
NAME = 'x\x1b[2J\n"}\\<b>'


def as_argument(directory: Path) -> tuple[str, ...]:
    """Starts a program whose first argument is hostile."""
    return ("setsid", "bash", "-c", f'exec -a {shlex.quote(ARGUMENT)} "$0" "$@"')


def as_name(directory: Path) -> tuple[str, ...]:
    """Starts a program whose name is hostile, and that shows no arguments by which it could be called instead."""
    file = shlex.quote(str(directory / NAME))
    return ("setsid", "bash", "-c", f'ln -sf "$0" {file} && exec -a "" {file} "$@"')


def assert_harmless(text: str, *, shown: bool = True) -> None:
    assert {character for character in text if not character.isprintable()} <= {"\n"}
    assert not shown or SHOWN in text


def turns_of(agent: RunningAgent) -> Any:
    return json.loads(agent.get("/api/v1/turns")[1])["turns"]


@pytest.mark.parametrize(
    ("start", "rule"),
    [(as_argument, ""), (as_name, 'mine = { command = "x*", share = false }')],
    ids=["argument, shared", "name, left alone"],
)
def test_a_hostile_program(tmp_path: Path, start: Any, rule: str) -> None:
    config, socket = tmp_path / "gpucommons.toml", tmp_path / "s" / "s.sock"
    socket.parent.mkdir()
    config.write_text(f'[scheduler]\nshare_programs = "own"\nsocket = "{socket}"\n[sharing_quotas]\n{rule}\n')
    with SharedGpu(tmp_path) as shared:
        pids = {shared.program(MATMUL[4096], prefix=start(tmp_path)).pid for _ in range(2)}
        with running_agent("--config", str(config), environment=shared.environment()) as agent:

            def rows() -> list[str] | None:
                turns = turns_of(agent)
                found = [] if turns is None else [*turns["clients"].values(), *turns["left_alone"]]
                names = [str(row["name"]) for row in found]
                # Until its command line is read, a program has the name of its file.
                return names if sum(SHOWN in name for name in names) == len(pids) else None

            names = until(rows, "both programs are in the document")
            for name in names:
                assert_harmless(name)
                assert name.endswith(tuple(f"(pid {pid})" for pid in pids))
            assert_harmless(command("scheduler", "status", "--socket", str(socket)).stdout)
            explained = command("scheduler", "explain", names[0], "--socket", str(socket)).stdout
            assert_harmless(explained)
            assert len(explained.splitlines()) == 1
            order = ("set-limit", f"command:{ARGUMENT}", "--core", "50", "--socket", str(socket))
            assert_harmless(command("scheduler", *order).stdout)
            billed = [] if rule else sorted(map(bounded_name, names))

            def labels() -> list[dict[str, str]]:
                return [dict(pairs) for metric, pairs in parsed(agent.get("/metrics")[1]) if metric == BILLED]

            until(lambda: sorted(row["name"] for row in labels()) == billed, "both are billed by name, or left alone")
            assert "<b>" not in agent.get("/plain")[1]
            assert_harmless("\n".join(agent.lines), shown=False)
            assert agent.stop() == 0
