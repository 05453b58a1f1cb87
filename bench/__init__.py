"""Benchmarks: each compares with a peer in one interleaved run and prints one table.

They use the testbeds of tests/, which are on the path of `python -m bench.NAME` from here on.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
