"""`gpucommons park`: move the GPU memory of programs to host memory."""

from gpucommons.cli.options import AsJson, ConfigFile
from gpucommons.cli.parking_orders import NoWait, ParkTarget, carry_out
from gpucommons.cli.scheduler import SocketPath


def park(
    target: ParkTarget,
    no_wait: NoWait = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    socket_path: SocketPath = None,
) -> None:
    """Move the GPU memory of programs to host memory, without ending them: your own, or as an admin all users'.

    A parked program sleeps in its next CUDA call. It comes back when it uses the CPU again, or by 'gpucommons wake'.
    Exit status: 0 parked, 1 refused or not possible, 2 wrong usage.
    """
    carry_out("park", target, config, socket_path, no_wait, as_json)
