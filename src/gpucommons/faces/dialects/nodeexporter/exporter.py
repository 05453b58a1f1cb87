"""node_exporter_build_info: the version of node_exporter whose vocabulary this is, and that of gpucommons."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

# The version of node_exporter whose names, labels and units the dialect has.
NODE_EXPORTER_VERSION = "1.5.0"
_GO_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}

BUILD_INFO = gauge(
    "node_exporter_build_info",
    "Version of node_exporter whose vocabulary this is, and of gpucommons as its revision; always 1.",
    *("version", "revision", "branch", "goversion", "goos", "goarch"),
)

CATALOGUE = (BUILD_INFO,)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    agent, kernel = snapshot.readings.agent, snapshot.readings.kernel
    if agent is not None and kernel is not None and (own := kernel.uname) is not None:
        # gpucommons is not compiled with Go: the label goversion is empty.
        system, architecture = own.sysname.lower(), _GO_NAMES.get(own.machine, own.machine)
        revision = f"gpucommons-{agent.version}"
        yield BUILD_INFO.value(1, NODE_EXPORTER_VERSION, revision, "gpucommons", "", system, architecture)
