"""Panels that are empty on a healthy node or where a feature is not used, and why."""

MAY_BE_EMPTY: dict[tuple[str, str], str] = {
    ("ds01_overview", "Unmanaged containers with GPUs"): "all containers have allocations",
    ("nvidia_dcgm", "Throttle reasons"): "no GPU is throttled",
    ("nvidia_dcgm", "NVLink"): "no GPU has NVLink, or they are older than Hopper",
    ("nvidia_dcgm", "NVLink throughput"): "no GPU has NVLink",
    ("nvidia_dcgm", "NVLink errors"): "no GPU has NVLink",
    ("nvidia_dcgm", "XIDs by code"): "there was no XID error since the agent started",
    ("gpu_sharing", "Throttled by quota"): "no client is at the limit of its compute quota",
    ("gpu_sharing", "Memory quota used"): "no client has a memory quota",
    ("gpu_sharing", "Time to release"): "no turn was ended early",
}
