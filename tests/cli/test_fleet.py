"""`--fleet`: the slots of all nodes, from the agent's document or from Prometheus itself, and the exit statuses."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_nodes import SimpleNode, fleet
from gpucommons.model.allocations import SlotState
from prometheus_server import Prometheus
from running import command, running_agent
from terminal import in_terminal, without_escapes
from waiting import until

BUSY = (SlotState.BUSY, "alice")
NODES = {
    "gpu-1:9460": SimpleNode(1, [(SlotState.FREE, ""), BUSY, (SlotState.HELD_IDLE, "bob")]),
    "gpu-2:9460": SimpleNode(2, [BUSY, (SlotState.RESERVED, "")], "NVIDIA A100-SXM4-80GB"),
    "gpu-3:9460": SimpleNode(3, [BUSY]),
}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """The third node no longer answers."""
    with fleet(NODES, tmp_path_factory.mktemp("fleet")) as (server, found):
        del server.texts["node-3"]
        until(lambda: found.query('up{instance="gpu-3:9460"} == 0'), "the third node is down")
        yield found


def config_of(folder: Path, url: str) -> str:
    file = folder / "agent.toml"
    file.write_text(f'[fleet]\nprometheus_url = "{url}"\n')
    return str(file)


def test_gpus_of_the_fleet_in_one_sentence_and_a_table(prometheus: Prometheus) -> None:
    lines = command("gpus", "--fleet", "--prometheus", prometheus.url).stdout.splitlines()
    assert lines[0] == (
        "1 node not answering (gpu-3) · 1 free (of 6 slots on 3 nodes) · "
        "1 held idle (longest bob on gpu-1 GPU 2, 1 h 7 min) · 2 busy · 1 reserved"
    )
    assert lines[1].split() == ["NODE", "SLOT", "MODEL", "UTIL", "MEMORY", "FREE", "OWNER", "STATE"]
    rows = [line.split() for line in lines[2:8]]
    assert [(row[0], row[1]) for row in rows] == [
        *(("gpu-1", "0"), ("gpu-1", "2"), ("gpu-2", "1"), ("gpu-1", "1"), ("gpu-2", "0"), ("gpu-3", "0")),
    ]
    assert lines[2].endswith("free")
    assert "bob" in lines[3]
    assert lines[3].endswith("held idle 1 h 7 min")
    assert lines[7].endswith("not answering")
    assert lines[8].startswith("gpu-3 is not answering for ")


@pytest.mark.parametrize("name", ["queue", "parked", "reservations"])
def test_what_waits_on_the_fleet_is_counted_by_node(prometheus: Prometheus, name: str) -> None:
    """Prometheus has no names of requests and programs: the last line has the command that lists them."""
    found = command(name, "--fleet", "--prometheus", prometheus.url)
    assert found.returncode == 0
    header, row, hint, silent = found.stdout.splitlines()
    assert header.split() == ["NODE", "REQUESTS", "FOR", "A", "TURN", "PAUSED", "PARKED", "RESERVED"]
    assert row.split() == ["gpu-2", "-", "0", "0", "0", "1"]
    assert hint == f"By name: 'gpucommons {name} --connect http://NODE:PORT', or '{name}' on the node."
    assert silent.startswith("gpu-3 is not answering")
    nodes = json.loads(command(name, "--json", "--prometheus", prometheus.url).stdout)["nodes"]
    assert {instance: node["reserved_slots"] for instance, node in nodes.items()} == {
        "gpu-1:9460": 0,
        "gpu-2:9460": 1,
        "gpu-3:9460": 0,
    }


def test_free_slots_of_the_fleet_from_the_configuration(prometheus: Prometheus, tmp_path: Path) -> None:
    config = config_of(tmp_path, prometheus.url)
    found = command("free", "--fleet", "--config", config)
    assert (found.returncode, [line.split()[0] for line in found.stdout.splitlines()]) == (
        0,
        ["NODE", "gpu-1", "gpu-3"],
    )
    document = json.loads(command("free", "--fleet", "--json", "--config", config).stdout)
    assert [slot["uuid"] for slot in document["fleet"]["slots"]] == [NODES["gpu-1:9460"].uuid(0)]
    table = command("free", "--fleet", "--format", "csv", "--config", config).stdout.splitlines()
    assert [line.split(",")[:2] for line in table] == [["node", "slot"], ["gpu-1:9460", "0"]]
    none = command("free", "--fleet", "--memory", "160G", "--json", "--config", config)
    assert (none.returncode, json.loads(none.stdout)["fleet"]["slots"]) == (1, [])
    words = command("free", "--fleet", "--memory", "200G", "--config", config)
    assert words.returncode == 1
    assert "no free slot with enough memory" in words.stderr


@pytest.mark.long
def test_the_agent_is_asked_first(prometheus: Prometheus, tmp_path: Path) -> None:
    config = config_of(tmp_path, prometheus.url)
    with running_agent("--simulate", "lab", "--config", config) as agent:
        found = command("free", "--fleet", "--connect", agent.url, "--json")
        assert found.returncode == 0
        served = json.loads(agent.get("/api/v1/fleet")[1])
        assert [slot["uuid"] for slot in served["fleet"]["slots"]][:1] == [NODES["gpu-1:9460"].uuid(0)]
        assert json.loads(found.stdout)["fleet"]["nodes"].keys() == served["fleet"]["nodes"].keys()


@pytest.mark.long
def test_a_prometheus_that_does_not_answer_is_status_3(tmp_path: Path) -> None:
    config = config_of(tmp_path, "http://127.0.0.1:1")
    for arguments in (("free", "--fleet"), ("gpus", "--fleet"), ("gpus", "--fleet", "--json")):
        found = command(*arguments, "--config", config)
        assert found.returncode == 3
        assert "Prometheus at http://127.0.0.1:1 does not answer: Connection refused" in found.stderr
        assert found.stdout == ""
    with running_agent("--simulate", "lab", "--config", config) as agent:
        found = command("free", "--fleet", "--connect", agent.url)
        assert found.returncode == 3
        assert "does not answer: Connection refused" in found.stderr


def test_without_a_prometheus_it_says_what_to_set() -> None:
    found = command("gpus", "--fleet")
    assert found.returncode == 2
    assert "fleet.prometheus_url" in found.stderr
    assert command("free", "--fleet", "--export").returncode == 2
    wrong = command("free", "--prometheus", "gpus")
    assert wrong.returncode == 2
    assert "http://" in wrong.stderr


@pytest.mark.long
@pytest.mark.parametrize("columns", [80, 120])
def test_sentence_and_table_fit_the_terminal(prometheus: Prometheus, columns: int) -> None:
    status, written = in_terminal(columns, "gpus", "--fleet", "--prometheus", prometheus.url)
    assert status == 0, written
    lines = without_escapes(written).splitlines()
    assert max(map(len, lines)) <= columns
    table = [line for line in lines if line.startswith(("NODE", "gpu-1", "gpu-2"))]
    assert len(table) == 6
    assert all(word in table[0] for word in ("MODEL", "UTIL", "OWNER", "STATE"))
    assert "held idle 1 h 7 min" in table[2]
