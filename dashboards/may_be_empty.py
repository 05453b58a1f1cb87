"""Panels that show nothing on a node where all is well or where something is not used, and why that is right."""

MAY_BE_EMPTY: dict[tuple[str, str], str] = {
    ("ds01_overview", "Unmanaged containers with GPUs"): "nobody went past the allocation",
    ("nvidia_dcgm", "Held back by"): "no GPU is held back",
    ("nvidia_dcgm", "NVLink"): "no GPU has NVLink, or they are older than Hopper",
    ("nvidia_dcgm", "NVLink throughput"): "no GPU has NVLink",
    ("nvidia_dcgm", "NVLink errors"): "no GPU has NVLink",
    ("nvidia_dcgm", "XIDs by code"): "there was no XID error since the agent started",
    ("gpu_sharing", "Held to the quota"): "no client is at the limit of its compute quota",
    ("gpu_sharing", "Memory used of the quota"): "no client has a memory quota",
    ("gpu_sharing", "Slowness to release"): "no turn was ended early",
}
