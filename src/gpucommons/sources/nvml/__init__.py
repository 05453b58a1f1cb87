"""The GPUs through NVML: one pass a second over every GPU, each driver call only as often as it is cheap."""
