"""`make torture`: every attack for some seconds, on this machine only. Prints what was done and what came of it.

    python -m adversary.torture [SECONDS [SEED]]

Ends with an error at the first failure. The seed is printed: with it, an attack does the same again.
"""

import logging
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from adversary.all import ON_DISK, ON_SOCKETS
from adversary.budget import Budget
from adversary.victim import victim


def main(seconds: float, seed: int) -> None:
    # The refusals of a full disk are expected; the attack counts them.
    logging.disable(logging.ERROR)
    _show(f"{seconds:g} s for each attack, seed {seed}")
    with tempfile.TemporaryDirectory() as name, victim(Path(name)) as attacked:
        for attack in ON_SOCKETS:
            counts = attack.run(attacked, Budget(random.Random(seed), seconds=seconds))
            attacked.check()
            _show_counts(attack.run.__name__, counts, f"; the agent has {attacked.rss_mb():.0f} MB")
    for disk_attack in ON_DISK:
        with tempfile.TemporaryDirectory() as name:
            try:
                counts = disk_attack.run(Path(name), Budget(random.Random(seed), seconds=seconds))
            except pytest.skip.Exception as skipped:
                _show(f"{disk_attack.run.__name__}: not run: {skipped}")
            else:
                _show_counts(disk_attack.run.__name__, counts)


def _show_counts(name: str, counts: Counter[str], more: str = "") -> None:
    _show(f"{name}: " + ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())) + more)


def _show(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    given = sys.argv[1:]
    main(float(given[0]) if given else 30.0, int(given[1]) if given[1:] else random.getrandbits(30))
