"""CDI, by which a container runtime injects a device that a file in /etc/cdi or /var/run/cdi describes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpucommons.base.text import parse_decimal
from gpucommons.sources.source import items, mapping, text

CDI_KIND: Final = "nvidia.com/gpu"

_MAX_CDI_BYTES: Final = 4 * 2**20


def cdi_uuids(directories: Sequence[Path]) -> frozenset[str]:
    """The names of NVIDIA's devices in the CDI files of this host. A file that cannot be read has none."""
    import yaml

    uuids: set[str] = set()
    for file in (path for directory in directories for path in directory.glob("*.*")):
        if file.suffix not in (".yaml", ".yml", ".json"):
            continue
        try:
            with file.open("rb") as opened:
                document = mapping(
                    yaml.load(opened.read(_MAX_CDI_BYTES), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
                )
        except (OSError, yaml.YAMLError, RecursionError):
            continue
        if text(document.get("kind")) == CDI_KIND:
            uuids.update(text(mapping(device).get("name")) for device in items(document.get("devices")))
    return frozenset(uuids) - {""}


def runtime_has_cdi(version: str) -> bool:
    """Whether a runtime takes CDI devices from the kubelet by default: `containerd://2.0.1`, `cri-o://1.31.0`."""
    name, _, number = version.partition("://")
    major, _, rest = number.lstrip("v").partition(".")
    release = parse_decimal(major), parse_decimal(rest.partition(".")[0])
    least = {"containerd": (2, 0), "cri-o": (1, 28)}.get(name)
    if least is None or release[0] is None or release[1] is None:
        return False
    return (release[0], release[1]) >= least
