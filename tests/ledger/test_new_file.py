"""A ledger that is being created is not one of another program."""

import sqlite3
from pathlib import Path

import pytest

from gpucommons.ledger.errors import LedgerError
from gpucommons.ledger.query import read_accounts, read_period
from gpucommons.model.accounts import AccountsReading


@pytest.mark.parametrize("stage", ["empty", "wal"])
def test_the_file_before_its_tables(tmp_path: Path, stage: str) -> None:
    path = tmp_path / "ledger.sqlite"
    path.touch()
    if stage == "wal":
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
    assert read_accounts(path, 1e9) == AccountsReading()
    with pytest.raises(LedgerError, match="is being created") as caught:
        read_period(path, 0, 100)
    assert caught.value.reason == "absent"


def test_another_program_is_still_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(LedgerError, match="not a gpucommons ledger"):
        read_accounts(path, 1e9)
