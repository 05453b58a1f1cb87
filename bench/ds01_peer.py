"""DS01's exporter and the ds01 dialect on one node: users and SSH sessions.

`python -m bench.ds01_peer DS01_INFRA` with a checkout of ds01-infra. Its exporter's own functions run here, with a
stand-in for `docker` that has a user's container and a protected container of DS01's monitoring, which runs as root;
`who` is the machine's. The dialect gets the same two containers and the machine's records of sessions. Bar: no series
of the exporter is missing or differs, and the dialect has no user that the exporter does not have.
"""

import importlib.util
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.table import show
from faces.dialects.test_ds01 import series
from gpucommons.owners.slots import slice_owner
from gpucommons.sources.people.users import UsersReader
from holding.test_allocations import docker, managed, readings
from parsing import Series, parsed

MONITOR = "ds01-dcgm-exporter"
PROTECTED = {"ds01.monitoring": "true", "ds01.container_type": "infrastructure", "ds01.protected": "true"}
FAMILIES = ("ds01_user_gpus_allocated", "ds01_user_gpu_equivalents", "ds01_user_containers_count", "ds01_ssh_sessions_")


def main() -> None:
    with TemporaryDirectory() as directory:
        theirs = of_the_exporter(Path(sys.argv[1]).resolve(), Path(directory))
    ours = of_the_dialect()
    names = sorted({key for found in (theirs, ours) for key in found if key[0].startswith(FAMILIES)})
    rows = [[f"{name}{dict(labels)}", theirs.get((name, labels)), ours.get((name, labels))] for name, labels in names]
    show("DS01's exporter and the ds01 dialect", ["series", "exporter", "dialect"], rows)
    differ = [row for row in rows if row[1] != row[2]]
    print(f"{len(theirs)} series of the exporter, {len(differ)} differ")
    sys.exit(1 if differ else 0)


def of_the_exporter(infra: Path, directory: Path) -> Series:
    spec = importlib.util.spec_from_file_location("ds01_exporter", infra / "monitoring/exporter/ds01_exporter.py")
    assert spec is not None
    assert spec.loader is not None
    exporter: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exporter)
    exporter.GPU_STATE_READER = infra / "scripts/docker/gpu-state-reader.py"
    exporter.get_gpu_state_module().DOCKER_BIN = str(stand_in(directory))
    return parsed("\n".join([*exporter.collect_user_metrics(), *exporter.collect_ssh_metrics(), ""]))


def stand_in(directory: Path) -> Path:
    """A `docker` that lists and inspects two containers."""
    labels = {"ds01.user": "alice", "ds01.interface": "orchestration", "ds01.managed": "true"}
    everything = {"Driver": "nvidia", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]]}
    inspected = dict(
        [
            container(MONITOR, PROTECTED, everything),
            container("thesis", labels, {**everything, "Count": 0, "DeviceIDs": ["0"]}),
        ]
    )
    program = directory / "docker"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\nknown = json.loads({json.dumps(json.dumps(inspected))})\n"
        "if sys.argv[1] == 'ps':\n    print('\\n'.join(known))\n"
        "if sys.argv[1] == 'inspect':\n    print(json.dumps([known[name] for name in sys.argv[2:] if name in known]))\n"
    )
    program.chmod(0o755)
    return program


def container(name: str, labels: dict[str, str], request: dict[str, object]) -> tuple[str, dict[str, object]]:
    return name, {
        "Id": name.encode().hex().ljust(64, "0"),
        "Name": f"/{name}",
        "Config": {"Labels": labels, "Env": []},
        "HostConfig": {"CgroupParent": "", "DeviceRequests": [request]},
        "State": {"Running": True, "Status": "running"},
    }


def of_the_dialect() -> Series:
    monitor = docker(MONITOR, count=-1, labels=PROTECTED)
    users = UsersReader(Path("/"), Path("/proc"), Path("/sys/fs/cgroup"), slice_owner, Path("/nonexistent")).read()
    given = readings(managed("thesis", "alice", "0"), monitor)
    return series(given._replace(users=users._replace(container_uids={monitor.id: 0})))


if __name__ == "__main__":
    main()
