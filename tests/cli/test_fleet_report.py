"""`report --fleet`: months of all nodes, from a real Prometheus with the shipped rules, equal to their ledgers."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from fleet_nodes import node_server, scrape_config
from gpucommons.base.periods import last_months, month
from gpucommons.faces.dialects.gpucommons import GPUCOMMONS
from gpucommons.faces.documents.accounts import period_document
from gpucommons.faces.documents.fleet_report import SCHEMA
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.ledger.query import accounts_of, read_accounts, read_period
from gpucommons.ledger.store import Store
from gpucommons.model.accounts import Prices
from gpucommons.model.allocations import Account
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.words import By
from ledger.builders import ALICE, BOB, GPU, MIG, batch, moment
from needs import needs_program
from prometheus_server import Prometheus, running_prometheus
from running import command, running_agent
from stack.promql import RULES
from terminal import in_terminal, without_escapes
from waiting import until

EUR = Prices((("*", 2_500_000_000),), 300_000_000, "EUR")
POD = Account("pod", "train", "vision", pod="train")


@dataclass
class Fleet:
    prometheus: Prometheus
    ledgers: dict[str, Path]
    month: str


def text_of(ledger: Path, prices: Prices, now_s: float) -> str:
    reading = read_accounts(ledger, now_s, prices)
    snapshot = Snapshot(1, 0.0, now_s, "node", readings=Readings(accounts=reading))
    return Exposition(lambda: snapshot, [GPUCOMMONS]).metrics(None, False, gzip=False)[0].decode()


@contextmanager
def fleet_of(folder: Path, prices: dict[str, Prices]) -> Iterator[Fleet]:
    """A Prometheus that has recorded this month of the ledgers of two nodes."""
    needs_program("prometheus")
    now_s = time.time()
    first_s = month(last_months(1, now_s)[0], now_s, None).since_s
    # Within this month, also in its first seconds.
    at_s = max(float(first_s), now_s - 60)
    ledgers = {}
    for number, name in enumerate(prices):
        ledgers[name] = folder / f"{name}.sqlite"
        store = Store(ledgers[name], "run", "boot")
        store.begin(moment(0, at_s))
        for count, (seconds, account, slot) in enumerate(
            [(7200 + number, ALICE, GPU), (3600, BOB, MIG), *([(900, POD, GPU)] if number else [])], 1
        ):
            store.write(count, batch(seconds, account, at_s, slot), moment(count, at_s))
        store.close()
    # The rules as they are shipped, every second.
    document = yaml.safe_load((RULES / "fleet.yml").read_text())
    groups = [group for group in document["groups"] if group["name"] == "gpucommons-fleet-months"]
    (folder / "fleet.json").write_text(json.dumps({"groups": [{**group, "interval": "1s"} for group in groups]}))
    with node_server({name: text_of(path, prices[name], now_s) for name, path in ledgers.items()}) as server:
        config = json.loads(scrape_config(server.port, {f"{name}:9460": name for name in ledgers}))
        (folder / "prometheus.yml").write_text(json.dumps({**config, "rule_files": [str(folder / "fleet.json")]}))
        with running_prometheus(folder / "prometheus.yml", folder / "data") as prometheus:
            held = sum(7200 + number + 3600 + 900 * number for number in range(len(prices)))
            prometheus.wait_for(f"sum(gpucommons:fleet_month_held_gpu_seconds:sum) == {held}")
            prometheus.wait_for("gpucommons:fleet_month_unpriced_gpu_seconds:sum or vector(0)")
            yield Fleet(prometheus, ledgers, last_months(1, now_s)[0])


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_of(tmp_path_factory.mktemp("fleet"), {"gpu-1": EUR, "gpu-2": EUR}) as found:
        yield found


def asked(fleet: Fleet, *arguments: str) -> Any:
    found = command("report", "--fleet", "--prometheus", fleet.prometheus.url, "--json", *arguments)
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    Draft202012Validator(SCHEMA).validate(document)
    (period,) = document["accounts"].values()
    return period


@pytest.mark.parametrize("by", [By.USER, By.GROUP])
def test_it_is_the_sum_of_the_ledgers(fleet: Fleet, by: By) -> None:
    period = asked(fleet, "--by", by.value)
    now_s = time.time()
    expected: dict[str, dict[str, float]] = {}
    for ledger in fleet.ledgers.values():
        usage = read_period(ledger, *month(fleet.month, now_s, None))
        document: Any = period_document(accounts_of(usage, by, None, EUR))
        for name, row in (*document[f"{by}s"].items(), ("total", document["total"])):
            sums = expected.setdefault(name, {})
            for column, value in row.items():
                sums[column] = sums.get(column, 0.0) + value
    for name, row in (*period[f"{by}s"].items(), ("total", period["total"])):
        for column, value in row.items():
            if column != "efficiency_ratio":
                assert value == pytest.approx(expected[name][column], abs=2e-6), (name, column)
    assert set(expected) == {*period[f"{by}s"], "total"}
    assert period["currency"] == "EUR"
    # An hour on each node.
    if by is By.USER:
        assert list(period["users"]) == ["alice", "bob", "vision/train"]
        assert period["users"]["bob"]["held_gpu_hours"] == 2
    else:
        assert list(period["groups"]) == ["lab", "(none)"]


def test_by_month_and_another_month(fleet: Fleet) -> None:
    period = asked(fleet, "--by", "month")
    assert list(period["months"]) == [fleet.month], "a month without readings has no row"
    assert period["months"][fleet.month] == period["total"]
    assert asked(fleet, "--month", "2020-01")["users"] == {}


def test_the_table_fits_and_has_the_cost(fleet: Fleet) -> None:
    status, written = in_terminal(80, "report", "--fleet", "--prometheus", fleet.prometheus.url)
    lines = without_escapes(written).splitlines()
    assert status == 0, written
    assert max(map(len, lines)) <= 80
    assert lines[2].split()[:2] == ["USER", "HELD"]
    assert "COST EUR" in lines[2]
    assert [line.split()[0] for line in lines[3:8] if not line.startswith("-")] == [
        "alice",
        "bob",
        "vision/train",
        "total",
    ]


@pytest.mark.long
def test_the_agent_answers_by_the_privacy_rule(tmp_path: Path, fleet: Fleet) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(f'[fleet]\nprometheus_url = "{fleet.prometheus.url}"\n[privacy]\nshow_owners = "own"\n')
    with running_agent("--simulate", "lab", "--config", str(config)) as agent:
        status, body = agent.get("/api/v1/fleet/report")[:2]
        assert (status, json.loads(body)["accounts"]) == (200, None), "a viewer without a name"
        assert json.loads(body)["hidden"]["sections"] == ["accounts"]
        assert agent.get("/api/v1/fleet/report?month=11")[0] == 400
        assert agent.get("/api/v1/fleet/report?by=month&month=2026-11")[0] == 400
    config.write_text(f'[fleet]\nprometheus_url = "{fleet.prometheus.url}"\n')
    with running_agent("--simulate", "lab", "--config", str(config)) as agent:
        found = command("report", "--fleet", "--connect", agent.url, "--json")
        assert json.loads(found.stdout)["accounts"][fleet.month]["total"] == asked(fleet)["total"]


def test_costs_in_two_currencies_have_no_sum(tmp_path: Path) -> None:
    with fleet_of(tmp_path, {"gpu-1": EUR, "gpu-2": EUR._replace(currency="CHF")}) as fleet:
        until(lambda: "cost_note" in asked(fleet), "both currencies are recorded")
        period = asked(fleet)
        assert "cost" not in period["total"]
        assert period["cost_note"] == "the nodes have prices in CHF and EUR: no sum"
        table = command("report", "--fleet", "--prometheus", fleet.prometheus.url).stdout
        assert "cost: the nodes have prices in CHF and EUR: no sum" in table


def test_without_prometheus_it_says_so() -> None:
    none = command("report", "--fleet")
    assert (none.returncode, "fleet.prometheus_url" in none.stderr) == (2, True)
    down = command("report", "--fleet", "--prometheus", "http://127.0.0.1:1")
    assert (down.returncode, down.stdout) == (3, "")
    assert "Prometheus at http://127.0.0.1:1 does not answer: Connection refused" in down.stderr
    for wrong in (
        ("--by", "month"),
        ("--fleet", "--since", "7d"),
        ("--fleet", "--user", "alice"),
        ("--fleet", "--by", "pod", "--prometheus", "http://127.0.0.1:1"),
        ("--fleet", "--month", "November", "--prometheus", "http://127.0.0.1:1"),
        ("--prometheus", "http://127.0.0.1:1"),
    ):
        refused = command("report", *wrong)
        assert (refused.returncode, refused.stdout) == (2, ""), wrong
        assert len(refused.stderr.splitlines()) == 1, refused.stderr
