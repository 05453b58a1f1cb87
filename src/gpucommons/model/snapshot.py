"""Everything the agent knows at one instant, as one immutable value that every face is drawn from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpucommons.model.agent import AgentReading
    gpus: GpuReading | None = None
