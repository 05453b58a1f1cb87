"""gpucommons: the node agent for GPUs that people share."""

__version__ = "0.2.0"
