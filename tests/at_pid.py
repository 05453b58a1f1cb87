"""Starts a command with a chosen pid, in a session of its own: run as a program, which stays its parent.

python at_pid.py PID COMMAND [ARGUMENT ...]

The kernel gives the pid after ns_last_pid. Other processes start meanwhile: it tries again until the pid is hit. Then
pids go on where they were: the next process would get the pid of a neighbour that has ended.
"""

import os
import sys
import time
from pathlib import Path

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
WITHIN_S = 20


def main() -> int:
    chosen, command = int(sys.argv[1]), sys.argv[2:]
    before = LAST_PID.read_text()
    deadline_s = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline_s:
        LAST_PID.write_text(str(chosen - 1))
        pid = os.fork()
        if pid == 0:
            if os.getpid() != chosen:
                os._exit(0)
            os.setsid()
            os.execvp(command[0], command)
        LAST_PID.write_text(before)
        _, status = os.waitpid(pid, 0)
        if pid == chosen:
            return os.waitstatus_to_exitcode(status)
    return 1


if __name__ == "__main__":
    sys.exit(main())
