"""gpucommons: the node agent for GPUs that people share."""

__version__ = "0.1.0"
