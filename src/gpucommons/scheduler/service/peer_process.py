"""What procfs shows about the process at the other end of a socket."""

from pathlib import Path

from gpucommons.base.process_stat import start_ticks
from gpucommons.base.unix_listener import PeerCredentials
from gpucommons.scheduler.policy.state import ClientProcess


def process_of(peer: PeerCredentials) -> ClientProcess | None:
    """None where the process is in another pid namespace, or has ended."""
    try:
        ticks = start_ticks(Path(f"/proc/{peer.pid}/stat").read_bytes())
    except (OSError, ValueError, IndexError):
        return None
    return ClientProcess(peer.uid, peer.pid, ticks)
