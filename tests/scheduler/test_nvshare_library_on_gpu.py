"""A CUDA program with the real library of nvshare next to an unmodified torch program, on a real GPU. As root.

LIBNVSHARE names the library, built from its public repository (protocol v2). It uses nvshare's own socket.
"""

import importlib.util
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from running import command_process, running_agent
from scheduler.torch_programs import CountingProgram, TorchProgram, rates
from waiting import until

LIBRARY = os.environ.get("LIBNVSHARE", "")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not LIBRARY, reason="needs nvshare's library: set LIBNVSHARE"),
]
PROGRAM = Path(__file__).with_name("driver_program.py")
SOCKET = Path("/var/run/nvshare/scheduler.sock")
SETTLE_S, SOLO_S, MEASURE_S = 5.0, 5.0, 20.0


@contextmanager
def begun(program: CountingProgram) -> Iterator[CountingProgram]:
    try:
        until(lambda: program.products > 0, "the program uses the GPU", within_s=60)
        yield program
    finally:
        program.stop()


def clients(environment: dict[str, str]) -> list[Any]:
    answer = command_process("scheduler", "status", "--json", environment=environment)
    document = json.loads(answer.stdout)
    return list(document["turns"]["clients"].values())


@pytest.mark.parametrize("takes_the_lock", [True, False])
def test_a_client_of_nvshare_and_a_plain_program_have_fair_turns(tmp_path: Path, takes_the_lock: bool) -> None:
    """The library requests the lock only while it has a limit. Without one, its process is shared as a program."""
    SOCKET.parent.mkdir(parents=True, exist_ok=True)
    config = tmp_path / "config.toml"
    config.write_text('[sharing_quotas]\nall = { memory = "64Gi" }\n' if takes_the_lock else "")
    environment = {"GPUCOMMONS_SCHEDULER_SOCKET": str(SOCKET)}
    with begun(CountingProgram(PROGRAM, tmp_path)) as program:
        solo_library = rates([program], SOLO_S)[0]
    with begun(TorchProgram(4096, tmp_path)) as program:
        solo_plain = rates([program], SOLO_S)[0]
    with (
        running_agent("--scheduler", "--share", "--config", str(config), environment=environment),
        begun(CountingProgram(PROGRAM, tmp_path, environment={"LD_PRELOAD": LIBRARY})) as library,
        begun(TorchProgram(4096, tmp_path)) as plain,
    ):
        time.sleep(SETTLE_S)
        library_rate, plain_rate = rates([library, plain], MEASURE_S)
        found = library_rate / solo_library, plain_rate / solo_plain
        listed = clients(environment)
        (of_library,) = [one for one in listed if one["program"] is None]
        assert (of_library["turns_total"] > 10) is takes_the_lock, of_library
        assert min(found) >= 0.45, found
        assert sum(found) >= 0.95, found
