"""Every attack, short. `make torture` runs them long; docs/reliability.md has its counts."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from adversary.all import ON_DISK, ON_SOCKETS, DiskAttack, SocketAttack
from adversary.budget import Budget
from adversary.victim import Victim, victim
from needs import needs_program

pytestmark = pytest.mark.long

SEED = 20261116


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    needs_program("cc")
    with victim(tmp_path_factory.mktemp("victim")) as found:
        yield found


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
