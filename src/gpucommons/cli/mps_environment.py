"""What `run` sets for a command under MPS: where the daemon is, and the limits of the lease."""

from collections.abc import Mapping
from typing import Any

_MIB = 2**20


def mps_environment(terms: Mapping[str, Any] | None) -> dict[str, str]:
    """`terms` are the agent's; None: the command runs without MPS. The command has one GPU, its device 0."""
    if terms is None:
        return {}
    found = {
        "CUDA_MPS_PIPE_DIRECTORY": str(terms["pipe_directory"]),
        "CUDA_MPS_LOG_DIRECTORY": str(terms["log_directory"]),
    }
    if terms["sm_percent"] is not None:
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(terms["sm_percent"])
    if terms["memory_bytes"] is not None:
        # In whole mebibytes, rounded up: a command gets what it requested.
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={-(-int(terms['memory_bytes']) // _MIB)}M"
    return found
