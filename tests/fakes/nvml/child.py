"""A process that reads the GPUs on request: one line in, one line of JSON out.

Loads the library as the agent does: nvidia-ml-py, by name, from the loader's path.
"""

import json
import sys
from typing import Any

from gpucommons.sources.nvml.source import NvmlReader
from gpucommons.sources.source import SourceAbsent, SourceError


def answer(source: NvmlReader) -> dict[str, Any]:
    try:
        reading = source.read()
    except SourceAbsent as absent:
        return {"absent": str(absent), "remedy": absent.remedy}
    except SourceError as error:
        return {"error": str(error), "reason": error.reason}
    return {
        "driver": reading.driver_version,
        "nvml": reading.nvml_version,
        "connections": reading.connections,
        "gpus": [
            {
                **gpu.readings._asdict(),
                "index": gpu.identity.index,
                "uuid": gpu.identity.uuid,
                "name": gpu.identity.name,
                "pci_bus_id": gpu.identity.pci_bus_id,
                "serial": gpu.identity.serial,
                "vbios_version": gpu.identity.vbios_version,
                "power_limit_min_watts": gpu.identity.power_limit_min_watts,
                "power_limit_max_watts": gpu.identity.power_limit_max_watts,
                "power_limit_default_watts": gpu.identity.power_limit_default_watts,
                "clock_sm_max_mhz": gpu.identity.clock_sm_max_mhz,
                "clock_memory_max_mhz": gpu.identity.clock_memory_max_mhz,
                "pcie_generation_max": gpu.identity.pcie_generation_max,
                "pcie_width_max": gpu.identity.pcie_width_max,
                "up": gpu.up,
                "watched": gpu.xid.watched,
                "gpm": gpu.gpm and gpu.gpm._asdict(),
                "processes": gpu.processes and [row._asdict() for row in gpu.processes],
                "mig_enabled": gpu.mig_enabled,
                "mig": [instance.profile for instance in gpu.mig],
            }
            for gpu in reading.gpus
        ],
        "slow_calls": [move.call for move in reading.slow_calls],
        "failures": {f"{call}:{code}": count for (call, code), count in reading.call_failures.items()},
        "dropped": {f"{uuid}:{reason}": count for (uuid, reason), count in reading.samples_dropped.items()},
    }


def main() -> None:
    source = NvmlReader()
    for _ in sys.stdin:
        sys.stdout.write(json.dumps(answer(source)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
