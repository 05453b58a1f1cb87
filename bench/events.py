"""A long event log: the first read of 1,000,000 lines, the cost of a new line, and the memory used.

The peer is the simplest exact window: a list of every event of the day.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.table import show

LINES = 1_000_000
NEW = 20_000
TYPES = ("container.create", "container.start", "gpu.allocate", "gpu.release", "maintenance.idle_kill")


def write_log(path: Path, lines: int, since_s: float, until_s: float) -> None:
    step_s = (until_s - since_s) / lines
    with path.open("a") as file:
        for number in range(lines):
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since_s + number * step_s))
            file.write(
                f'{{"timestamp": "{stamp}", "event_type": "{TYPES[number % 5]}", "schema_version": "1", '
                f'"user": "user{number % 40}", "source": "wrapper", "details": {{"container": "c{number % 997}"}}}}\n'
            )


_CHILD = """
import json, resource, sys, time
from pathlib import Path
from bench.events import NEW, follow_ours, follow_plainly, write_log
path = Path(sys.argv[2])
begin_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
first, later, counted = {"ours": follow_ours, "plain": follow_plainly}[sys.argv[1]](path)
peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin_kb
print(json.dumps([first, later, counted, peak_kb]))
"""


def follow_ours(path: Path) -> tuple[float, float, int]:
    from gpucommons.sources.ds01.events import Ds01EventsReader

    source = Ds01EventsReader(path, path.with_name("position"))

    def caught_up() -> int:
        while True:
            reading = source.read()
            if not reading.behind_bytes:
                return sum(reading.counts_24h.values())

    return _measured(path, caught_up)


def follow_plainly(path: Path) -> tuple[float, float, int]:
    from datetime import datetime

    events: list[tuple[float, str]] = []
    with path.open() as file:

        def caught_up() -> int:
            for line in file:
                event = json.loads(line)
                events.append((datetime.fromisoformat(event["timestamp"]).timestamp(), event["event_type"]))
            since_s = time.time() - 86_400
            return sum(1 for at, _ in events if at > since_s)

        return _measured(path, caught_up)


def _measured(path: Path, caught_up: object) -> tuple[float, float, int]:
    assert callable(caught_up)
    begun = time.process_time()
    caught_up()
    first_s = time.process_time() - begun
    write_log(path, NEW, time.time() - 2, time.time())
    begun = time.process_time()
    counted = caught_up()
    return first_s, (time.process_time() - begun) / NEW, counted


def run(which: str, path: Path) -> tuple[float, float, int, int]:
    done = subprocess.run([sys.executable, "-c", _CHILD, which, path], capture_output=True, text=True, check=True)
    first_s, later_s, counted, peak_kb = json.loads(done.stdout)
    return first_s, later_s, counted, peak_kb


def main() -> None:
    now_s = time.time()
    rows = []
    for which, name in (("ours", "gpucommons"), ("plain", "every event in a list")):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "events.jsonl"
            write_log(path, LINES, now_s - 1.2 * 86_400, now_s)
            first_s, later_s, counted, peak_kb = run(which, path)
        rows.append((name, f"{first_s:.1f} s", f"{later_s * 1e6:.1f} us", f"{peak_kb / 1024:.0f} MB", counted))
    show(
        f"An event log of {LINES:,} lines over 29 hours (CPU time; bar: first read under 8 s)",
        ("reader", "first read", "each new line", "memory it took", "events in 24 h"),
        rows,
    )


if __name__ == "__main__":
    main()
