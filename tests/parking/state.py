"""What an agent says of parking at this moment, over the control socket of its scheduler."""

import json
import socket
from pathlib import Path
from typing import Any

from gpucommons.config.runtime_directory import control_path


def parking_state(scheduler: str | Path) -> Any:
    """`scheduler` is the path of the scheduler's socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(control_path(str(scheduler)))
        connection.sendall(b'{"command": "status"}\n')
        return json.loads(connection.makefile("rb").readline())["answer"]["parking"]
