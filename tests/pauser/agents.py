"""A stand-in for the agent that does nothing but pause and resume programs as fast as it can, to be killed.

python agents.py RECORD MAX_PAUSE_S PID...    Each line on its standard input starts one more agent (a fork, which is
far faster than a new interpreter); its pid is printed. Run as a program.
"""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.client import Pauser, PauserSettings
from gpucommons.pauser.release import key_of

_LONGEST_TURN_S = 0.03


async def pause_for_ever(settings: PauserSettings, programs: list[ProcessKey]) -> None:
    pauser = Pauser(settings)
    await pauser.start()
    await asyncio.gather(*(turns(pauser, program) for program in programs))


async def turns(pauser: Pauser, program: ProcessKey) -> None:
    while True:
        if not pauser.available:
            await pauser.wait_available(1)
            continue
        await pauser.lock(program)
        await asyncio.sleep(random.uniform(0, _LONGEST_TURN_S))
        await pauser.unlock(program)
        await asyncio.sleep(random.uniform(0, _LONGEST_TURN_S / 3))


def main() -> None:
    settings = PauserSettings(record=Path(sys.argv[1]), max_pause_s=float(sys.argv[2]))
    programs = [key for pid in sys.argv[3:] if (key := key_of(int(pid))) is not None]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.close(0)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            random.seed(os.getpid())
            asyncio.run(pause_for_ever(settings, programs))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
