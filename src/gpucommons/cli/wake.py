"""`gpucommons wake`: bring the GPU memory of parked programs back."""

from gpucommons.cli.options import AsJson, ConfigFile
from gpucommons.cli.parking_orders import NoWait, ParkTarget, carry_out
from gpucommons.cli.scheduler import SocketPath


def wake(
    target: ParkTarget,
    no_wait: NoWait = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    socket_path: SocketPath = None,
) -> None:
    """Bring parked programs back to their GPU, as soon as it has the room: your own, or as an admin all users'.

    Exit status: 0 back, 1 refused or not possible, 2 wrong usage.
    """
    carry_out("wake", target, config, socket_path, no_wait, as_json)
