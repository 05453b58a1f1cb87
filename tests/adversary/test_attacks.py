"""Every attack, short. `make torture` runs them long; docs/reliability.md has its counts."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adversary.all import ON_DISK, ON_SOCKETS, DiskAttack, SocketAttack
from adversary.budget import Budget
from adversary.victim import Victim, victim
from needs import needs_program

pytestmark = pytest.mark.long

SEED = 20261116
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    needs_program("cc")
    with victim(tmp_path_factory.mktemp("victim")) as found:
        yield found


@pytest.mark.parametrize("name", ["torture", "mutants"])
def test_what_make_torture_starts_can_be_imported_without_pytest(name: str) -> None:
    path = os.pathsep.join(("src", "tests"))
    done = subprocess.run(
        [sys.executable, "-c", f"import adversary.{name}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("attack", ON_SOCKETS, ids=lambda attack: attack.run.__name__)
def test_the_agent_serves_its_users_under(attacked: Victim, attack: SocketAttack) -> None:
    counts = attack.run(attacked, Budget(random.Random(SEED), rounds=attack.rounds))
    attacked.check()
    assert counts["honest scrapes"] > 0
    assert counts["honest turns"] > 0


@pytest.mark.parametrize("attack", ON_DISK, ids=lambda attack: attack.run.__name__)
def test_the_ledger_survives(tmp_path: Path, attack: DiskAttack) -> None:
    counts = attack.run(tmp_path, Budget(random.Random(SEED), rounds=attack.rounds))
    assert counts.total() > 0
