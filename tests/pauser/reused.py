"""Two programs with one pid, one after the other: run as a program in a pid namespace of its own.

python reused.py LIBRARY PROGRAM DIRECTORY RECORD    prints what came of it as JSON.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from fakes.cuda.control import FakeCuda
from gpucommons.pauser.client import Pauser
from gpucommons.pauser.record import Entry, PauseRecord, Stage
from pauser.rig import code_of, run_with, settings


def main() -> None:
    library, program, directory, record = map(Path, sys.argv[1:])
    fake = FakeCuda(directory, library, program)
    first = fake.start()
    first.end()
    (directory / str(first.pid)).unlink()
    # The start time is counted in hundredths of a second.
    time.sleep(0.05)
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(first.pid - 1))
    second = fake.start()

    async def lock_both(pauser: Pauser) -> list[int]:
        replies = [await pauser.lock(key) for key in (first.key, second.key)]
        opened = PauseRecord.open(record.with_name("stale"))
        opened.write(Entry(first.pid, first.key.start_ticks, Stage.LOCKED))
        opened.close()
        await asyncio.to_thread(run_with, settings(fake, record.with_name("stale")), started)
        return [*map(code_of, replies)]

    states: list[str] = []

    async def started(_: Pauser) -> None:
        """Another pauser, whose record names the first program, has resumed what it holds."""
        states.append(second.state.name)

    codes = run_with(settings(fake, record), lock_both)
    second.runs()
    sys.stdout.write(json.dumps({"pids": [first.pid, second.pid], "codes": codes, "meanwhile": states}))
    fake.close()


if __name__ == "__main__":
    main()
