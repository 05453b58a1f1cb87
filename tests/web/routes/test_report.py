"""/api/v1/report: what each viewer gets of the ledger, and what is answered where there is none."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gpucommons.agent.accounts import Accounts
from gpucommons.config.accounts import LedgerSettings
from gpucommons.config.settings import Settings
from gpucommons.faces.documents.job import SCHEMA as JOB_SCHEMA
from gpucommons.faces.documents.report import SCHEMA, ReportQuery
from gpucommons.faces.history.history import History
from gpucommons.faces.web.routes.api import Api
from gpucommons.faces.web.routes.request import Request, Response
from gpucommons.ledger.store import Store
from gpucommons.model.accounts import PeriodAccounts
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.viewer import SEES_ALL, Viewer
from gpucommons.model.words import By
from ledger.builders import ALICE, BOB, MIG, batch, moment
from played import snapshot_of

NOW_S = 1_760_000_000.0
BOB_S_JOB = BOB._replace(job="4711")


class Served:
    """The API of an agent whose ledger holds an hour of alice and half an hour of bob."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._now: Snapshot = snapshot_of(Readings(), wall_s=NOW_S)
        settings = Settings(ledger=LedgerSettings(file=str(file)))
        accounts = Accounts(settings, None)
        self._api = Api(lambda: self._now, History(), "1.2.3", ledger=accounts.report, jobs=accounts.job)

    def response(self, query: dict[str, str], viewer: Viewer = SEES_ALL) -> Response:
        request = Request("GET", "/api/v1/report", query=tuple(query.items()), viewer=viewer)
        return asyncio.run(self._api.report(request))

    def job(self, query: dict[str, str], viewer: Viewer = SEES_ALL) -> Response:
        request = Request("GET", "/api/v1/job", query=tuple(query.items()), viewer=viewer)
        return asyncio.run(self._api.job(request))

    def accounts(self, viewer: Viewer = SEES_ALL, **query: str) -> Any:
        response = self.response(query, viewer)
        assert response.status == 200, response.body
        document = json.loads(response.body)
        Draft202012Validator(SCHEMA).validate(document)
        return document["accounts"]


@pytest.fixture
def served(tmp_path: Path) -> Served:
    found = Served(tmp_path / "ledger.sqlite")
    store = Store(found.file, "run", "boot")
    store.begin(moment(0))
    store.write(1, batch(3600, ALICE, NOW_S - 7200), moment(1))
    store.write(2, batch(1800, BOB_S_JOB, NOW_S - 7200, MIG), moment(2))
    store.close()
    return found


@pytest.mark.parametrize("by", By)
def test_the_total_is_the_same_for_every_row(served: Served, by: By) -> None:
    period = served.accounts(by=by)["30d"]
    assert period["total"]["held_gpu_hours"] == 1.5
    assert sum(row["held_gpu_hours"] for row in period[f"{by}s"].values()) == 1.5


def test_a_viewer_gets_their_own(served: Served) -> None:
    alice, nameless = Viewer(False, 1000, "alice"), Viewer(False)
    assert set(served.accounts()["30d"]["users"]) == {"alice", "bob"}
    assert set(served.accounts(alice)["30d"]["users"]) == {"alice"}
    assert set(served.accounts(alice, user="alice")["30d"]["users"]) == {"alice"}
    assert set(served.accounts(user="bob")["30d"]["users"]) == {"bob"}
    assert served.accounts(alice, by="gpu")["30d"]["total"]["held_gpu_hours"] == 1.0
    assert "free_gpu_hours" not in served.accounts(alice, by="gpu")["30d"]["total"]
    assert served.accounts(alice, user="bob") is None
    assert served.accounts(nameless) is None


def test_a_period_has_the_name_that_was_given(served: Served) -> None:
    assert list(served.accounts(since="1h")) == ["1h"]
    assert served.accounts(since="1h")["1h"]["users"] == {}
    assert list(served.accounts(month="2025-10")) == ["2025-10"]


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"since": "soon"}, "since"),
        ({"month": "November"}, "month"),
        ({"since": "1h", "month": "2025-10"}, "month"),
        ({"by": "colour"}, "by"),
        ({"gpu": "0"}, "gpu"),
    ],
)
def test_an_invalid_parameter_is_named(served: Served, query: dict[str, str], parameter: str) -> None:
    response = served.response(query)
    assert response.status == 400
    assert json.loads(response.body)["parameter"] == parameter


def test_a_ledger_that_cannot_be_read_is_502_and_one_that_does_not_exist_yet_is_empty(served: Served) -> None:
    served.file.unlink()
    assert served.accounts()["30d"]["users"] == {}
    served.file.write_bytes(b"garbage" * 300)
    response = served.response({})
    assert response.status == 502
    assert "ledger.sqlite" in json.loads(response.body)["error"]


def test_without_a_ledger_it_is_502() -> None:
    api = Api(lambda: snapshot_of(Readings()), History(), "1.2.3")
    for response in (
        asyncio.run(api.report(Request("GET", "/api/v1/report"))),
        asyncio.run(api.job(Request("GET", "/api/v1/job", query=(("id", "4711"),)))),
    ):
        assert response.status == 502
        assert "no ledger is kept" in json.loads(response.body)["error"]


def test_a_job_is_shown_to_its_user_and_to_viewers_that_see_all(served: Served) -> None:
    def job(viewer: Viewer, id: str = "4711") -> Any:
        response = served.job({"id": id}, viewer)
        assert response.status == 200, response.body
        document = json.loads(response.body)
        Draft202012Validator(JOB_SCHEMA).validate(document)
        return document["job"]

    bob, alice, nameless = Viewer(False, 1001, "bob"), Viewer(False, 1000, "alice"), Viewer(False)
    assert job(SEES_ALL) == job(bob)
    assert job(bob)["total"] == served.accounts(by="job")["30d"]["jobs"]["4711"]
    # A row without figures, as an older release has written it.
    assert (job(bob)["first_unix_s"], job(bob)["peak_memory_bytes"], job(bob)["busy_ratio"]) == (None, None, 1)
    assert job(alice) is None
    assert job(nameless) is None
    assert job(SEES_ALL, "4712") is None


def test_a_job_without_a_name_and_a_damaged_ledger(served: Served) -> None:
    for query in ({}, {"id": ""}, {"id": "4711", "by": "user"}):
        assert served.job(query).status == 400, query
    served.file.write_bytes(b"garbage" * 300)
    assert served.job({"id": "4711"}).status == 502


def test_one_viewer_cannot_fill_the_queue() -> None:
    async def scenario() -> None:
        free = asyncio.Event()

        async def slow(query: ReportQuery) -> PeriodAccounts:
            await free.wait()
            return PeriodAccounts(query.by, *query.period, {})

        api = Api(lambda: snapshot_of(Readings()), History(), "1.2.3", ledger=slow)
        alice, bob = Viewer(False, 1000, "alice"), Viewer(False, 1001, "bob")

        def asked(viewer: Viewer) -> "asyncio.Task[Response]":
            return asyncio.create_task(api.report(Request("GET", "/api/v1/report", viewer=viewer)))

        waiting = [asked(alice) for _ in range(4)]
        await asyncio.sleep(0)
        assert (await asked(alice)).status == 503
        waiting.append(asked(bob))
        await asyncio.sleep(0)
        free.set()
        assert [response.status for response in await asyncio.gather(*waiting)] == [200] * 5
        assert (await asked(alice)).status == 200

    asyncio.run(scenario())
