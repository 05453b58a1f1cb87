"""What `status` shows of other users: the rule of the API's Unix socket, with one reply for each kind of viewer."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from gpucommons.cli.scheduler_view import status_lines
from gpucommons.faces.documents.turns import turn_pieces
from gpucommons.model.sharing import SharingReading
from gpucommons.rules.privacy import Privacy
from gpucommons.scheduler.service.control_socket import ControlSocket, Document
from needs import needs_root
from open_folder import open_folder
from scheduler.peer_child import Peer, as_peer
from scheduler.served import PRIVACY, Scripted, Served, serving
from scheduler.test_admins import GROUP
from scheduler.test_peer_budget import request

# Where the administrator hides the names of others.
OWN = Privacy("own", unix=True, agent_uid=os.getuid())
ALICE, BOB = Peer(1501, 1501), Peer(1502, 1502)


@contextmanager
def served_to(privacy: Privacy = PRIVACY, document: Document = turn_pieces, group: str = "") -> Iterator[Served]:
    needs_root()
    with open_folder() as directory, serving(directory, mode="serial", admin_group=group) as served:
        door = ControlSocket(served.server, document, privacy)
        served.run(door.start())
        yield served
        served.run(door.stop())


def with_client_of(peer: Peer, pod: str, served: Served, meanwhile: Callable[[], None]) -> None:
    """A client of this user is connected and requests a turn while `meanwhile` runs."""
    count = len(served.reading().clients)

    def connected() -> None:
        served.until(lambda reading: len(reading.clients) > count)
        meanwhile()

    as_peer(peer, partial(connect, served.path, pod), connected)


def connect(path: str, pod: str) -> Scripted:
    return Scripted(path).register(pod, "ml").ask()


def seen_by(viewer: Peer, served: Served) -> Any:
    """The document of `status` as this user gets it."""
    reply = json.loads(as_peer(viewer, partial(look, served.path)))
    assert reply["ok"], reply
    return reply["answer"]


def look(path: str) -> str:
    return json.dumps(request(path))


def of_two(served: Served, viewer: Peer) -> Any:
    """What a viewer sees while a client of alice runs and one of bob waits."""
    seen = []
    with_client_of(
        ALICE,
        "alices",
        served,
        lambda: with_client_of(BOB, "bobs", served, lambda: seen.append(seen_by(viewer, served))),
    )
    return seen[0]


def test_a_user_of_the_machine_sees_the_names_of_all() -> None:
    with served_to() as served:
        document = of_two(served, BOB)
    assert {row["name"] for row in document["clients"].values()} == {"ml/alices", "ml/bobs"}


def test_a_user_sees_their_own_names_and_pseudonyms_of_others() -> None:
    with served_to(OWN) as served:
        document = of_two(served, BOB)
    assert "alices" not in json.dumps(document)
    hidden, own = sorted(document["clients"].values(), key=lambda row: row["uid"] or 0)
    assert (own["name"], own["uid"], own["pid"] is None) == ("ml/bobs", BOB.uid, False)
    assert (hidden["name"][:6], hidden["uid"], hidden["pid"], hidden["pod"]) == ("other-", None, None, "")
    (gpu,) = document["gpus"].values()
    assert gpu["running"] == [hidden["name"]], "the queue is complete"
    text = "\n".join(status_lines(document))
    assert f"running  {hidden['name']} for" in text
    assert "waiting  ml/bobs (" in text


@pytest.mark.parametrize(
    ("viewer", "group"), [(Peer(0, 0), ""), (Peer(1503, GROUP), "daemon")], ids=["root", "admin_group"]
)
def test_admins_see_all(viewer: Peer, group: str) -> None:
    with served_to(group=group) as served:
        document = of_two(served, viewer)
    assert {row["name"] for row in document["clients"].values()} == {"ml/alices", "ml/bobs"}


def test_show_owners_all_shows_all() -> None:
    with served_to(Privacy("all", unix=True, agent_uid=os.getuid())) as served:
        document = of_two(served, BOB)
    assert {row["name"] for row in document["clients"].values()} == {"ml/alices", "ml/bobs"}


READ = r"""
import json, sys
from scheduler.test_peer_budget import request
print(json.dumps(request(sys.argv[1])))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "place",
    [["unshare", "--pid", "--fork"], ["unshare", "--user", "--map-root-user"]],
    ids=["pid namespace", "user namespace"],
)
def test_root_of_a_container_sees_no_names(place: list[str]) -> None:
    """Its uid 0 is neither that of the node's root nor that of another container's."""
    with served_to() as served:
        client = Scripted(served.path).register("roots", "ml").ask().granted()
        done = subprocess.run(
            [*place, sys.executable, "-c", READ, served.path],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        reply = json.loads(done.stdout)
        assert reply["ok"], done.stderr
        assert "roots" not in done.stdout
        assert client.id not in done.stdout
        (row,) = reply["answer"]["clients"].values()
        assert (row["uid"], row["pid"]) == (None, None)
        assert not served.reading().refusals, "reading is not an order"


def test_one_reply_serves_all_viewers_without_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SharingReading] = []

    def document(reading: SharingReading) -> Iterator[str]:
        made.append(reading)
        yield from turn_pieces(reading)

    # However slow the machine is, the reply stays fresh.
    monkeypatch.setattr("gpucommons.scheduler.service.control_socket._STATUS_AGE_S", 600.0)
    with served_to(OWN, document) as served:
        client = Scripted(served.path).register("roots", "ml").ask().granted()
        for uid in range(2000, 2005):
            assert "roots" not in json.dumps(seen_by(Peer(uid, uid), served))
        assert request(served.path)["answer"]["clients"].keys() == {client.id}
    assert [reading.clients[0].uid for reading in made] == [-1, 0]
