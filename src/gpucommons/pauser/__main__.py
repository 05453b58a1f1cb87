"""`python -m gpucommons.pauser`: the pauser process. The agent starts it, or systemd does."""

import argparse
import os
import signal
import socket
from pathlib import Path

from gpucommons.pauser.arrivals import DEVICE_FILES
from gpucommons.pauser.log import Log
from gpucommons.pauser.places import ALIVE, default_record
from gpucommons.pauser.server import Server, ServerSettings


def main() -> None:
    given = _arguments()
    log = Log()
    server = Server(
        ServerSettings(
            record=given.record or default_record(os.environ, os.geteuid()),
            backend=given.backend,
            max_pause_s=given.max_pause_s,
            parent=given.parent,
            users=tuple(given.allow_user),
            alive=None if given.listen is None else given.listen.with_name(ALIVE),
            device_files=given.device_files,
        ),
        log,
    )
    server.stop_on(signal.SIGTERM)
    served = True
    try:
        if given.fd is not None:
            server.serve(socket.socket(fileno=given.fd))
        else:
            server.listen(given.listen)
    except OSError as error:
        log.line(f"cannot serve {given.listen or given.fd}: {error.strerror}; is another pauser running?")
        served = False
    log.drain(0.5)
    # A call that hangs keeps its thread for ever: the record says what it was about.
    os._exit(0 if served and server.is_clean else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gpucommons.pauser", description=__doc__)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--fd", type=int, metavar="N", help="Serve the agent at this inherited socket.")
    way.add_argument("--listen", type=Path, metavar="PATH", help="Serve agents at this Unix socket.")
    parser.add_argument("--record", type=Path, metavar="DIR", help="Directory of the record of paused programs.")
    parser.add_argument("--backend", choices=("cuda", "freeze"), default="cuda", help="How programs are paused.")
    parser.add_argument("--max-pause-s", type=_seconds, default=10.0, metavar="S", help="Longest pause in seconds.")
    parser.add_argument("--parent", type=int, default=0, metavar="PID", help="End when this is no longer the parent.")
    parser.add_argument(
        "--device-files", type=Path, default=DEVICE_FILES, metavar="DIR", help="Where the GPUs' device files are."
    )
    parser.add_argument(
        "--allow-user",
        action="append",
        default=[],
        metavar="USER",
        help="A user name or uid that may connect, besides root and the pauser's own user. May be repeated.",
    )
    return parser.parse_args()


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.01 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not from 0.01 to 3600 seconds")
    return value


if __name__ == "__main__":
    main()
