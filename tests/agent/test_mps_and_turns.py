"""Commands under MPS and programs that take turns are never on one GPU: the lease waits, or the turns end."""

from collections.abc import Iterator

import pytest

from agent.test_enforcement import LeasedNode
from fakes.mps import FakeMps
from fakes.shared_gpu import MATMUL
from gpucommons.agent.leases.facts import devices_in_turns
from gpucommons.model.sharing import ParkedReading, ParkingReading
from open_folder import open_folder
from running import command_process
from shared_node import shared_node
from simulation.played_lab import PlayedLab

pytestmark = pytest.mark.long

SETTINGS = '[leases]\nenabled = true\nmps = "all_users"\n'
SHARED = ("run", "--quiet", "--share")


@pytest.fixture
def leased() -> Iterator[LeasedNode]:
    with open_folder() as directory, shared_node() as node:
        leased = LeasedNode(node)
        leased.environment["PATH"] = FakeMps(directory).path
        leased.start("--share", "--interval", "0.5", sections=SETTINGS)
        yield leased
        # What no lease uses ends with the agent.
        node.agent.stop()


def test_a_lease_under_mps_waits_for_the_end_of_turns_and_ends_new_ones(leased: LeasedNode) -> None:
    node = leased.node
    first, second = (node.program(MATMUL[4096]) for _ in range(2))
    node.wait_for(lambda: node.way() == "turns", "they take turns")
    refused = command_process(*SHARED, "--no-wait", "true", environment=leased.environment)
    assert (refused.returncode, "no slot is free now" in refused.stderr) == (75, True), refused.stderr
    for program in (first, second):
        program.end()
    node.wait_for(lambda: not node.turns()["clients"], "the turns are over")
    with leased.lease("--share"):
        assert next(iter(leased.queue()["leases"].values()))["mps"]
        programs = [node.program(MATMUL[4096]) for _ in range(2)]
        node.reasons(*programs, saying="commands run under MPS on its GPU")
        assert not any(program.locked for program in programs)
        assert [node.standing(program) for program in programs] == ["", ""]
    node.wait_for(lambda: node.way() == "turns", "after the lease they take turns")


def test_programs_that_rest_are_not_in_the_way_and_parked_ones_are() -> None:
    sharing = PlayedLab().at(100.0).sharing
    assert sharing is not None
    busy = {client.gpu_uuid for client in sharing.clients if client.standing in ("running", "waiting", "throttled")}
    assert busy
    assert devices_in_turns(sharing) == busy
    assert devices_in_turns(None) == frozenset()
    parked = ParkedReading("k", "x", "alice", 1001, "parked", "GPU-p", (7,), 1, 1, 0.0, "idle")
    resting = tuple(client._replace(standing="resting") for client in sharing.clients)
    reading = sharing._replace(clients=resting, parking=ParkingReading(programs=(parked,)))
    assert devices_in_turns(reading) == {"GPU-p"}
