"""The dcgm dialect and dcgm-exporter's own code for lists of counters and for text: names, types, help and labels.

    python -m bench.dcgm_peer CHECKOUT

CHECKOUT is dcgm-exporter's source tree, a copy that may be written; Go builds dcgm_standin.go in it. The program itself
needs DCGM and a GPU. Here its packages parse its lists of counters and render the series of the simulated lab, whose
labels and values are ours: what is compared is which fields a list selects, names, types, help, the names of labels
(they occur in its source, or in the list as label fields) and their order.
Bar: every line of ours is a line of its own, and a field that is absent here is named.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import ROOT
from bench.table import show
from faces.dialects.test_dcgm_collectors import SERVED, text_of
from gpucommons.faces.dialects.dcgm.collectors import Shape, parse_collectors
from gpucommons.faces.dialects.dcgm.labels import DcgmOptions

LISTS = ("default-counters.csv", "dcp-metrics-included.csv", "1.x-compatibility-metrics.csv")
SAMPLE = re.compile(r"^(\w+)\{(.*)\} (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# The parts of a series that dcgm-exporter keeps in fields of their own.
OWN = {
    "gpu": "gpu",
    "pci_bus_id": "pci_bus_id",
    "device": "gpu_device",
    "modelName": "gpu_model",
    "GPU_I_PROFILE": "mig_profile",
    "GPU_I_ID": "gpu_instance_id",
    "hostname": "hostname",
}
ATTRIBUTES = {"pod", "namespace", "container", "pod_uid", "vgpu", "hpc_job"}
OLD_ATTRIBUTES = {"pod_name", "pod_namespace", "container_name"}
VARIANTS: Mapping[str, tuple[DcgmOptions, bool]] = {
    "": (DcgmOptions(hostname_label="hostname"), False),
    "USE_OLD_NAMESPACE": (DcgmOptions(hostname_label="hostname"), True),
    "NO_HOSTNAME": (DcgmOptions(hostname_label="none"), False),
    "pod UID": (DcgmOptions(hostname_label="hostname", pod_uid=True), False),
    "virtual GPUs": (DcgmOptions(hostname_label="hostname", shared="per_pod"), False),
}


def main() -> None:
    checkout = Path(sys.argv[1]).resolve()
    program = built(checkout)
    source = "".join(path.read_text() for path in (checkout / "internal" / "pkg").rglob("*.go"))
    rows: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        for name in LISTS:
            for commented in (False, True):
                text = (checkout / "etc" / name).read_text()
                chosen = Path(directory) / name
                chosen.write_text(uncommented(text) if commented else text)
                for variant, (options, old) in VARIANTS.items():
                    label = f"{name}{', all lines' if commented else ''}"
                    rows.append([label, variant, *compared(program, chosen, options, old, source)])
    header = [
        "list",
        "option",
        "fields",
        "absent here",
        "our lines",
        "the same",
        "the same but for the order of labels",
    ]
    show("The dcgm dialect and dcgm-exporter's packages", header, rows)
    sys.exit(0 if all(row[4] == row[5] + row[6] for row in rows) else 1)


def built(checkout: Path) -> Path:
    place = checkout / "cmd" / "standin"
    place.mkdir(exist_ok=True)
    shutil.copy(ROOT / "bench" / "dcgm_standin.go", place / "main.go")
    program = place / "standin"
    subprocess.run(["go", "build", "-mod=mod", "-o", program, "./cmd/standin"], cwd=checkout, check=True)
    return program


def uncommented(text: str) -> str:
    """The list with its optional fields. One that it has twice is taken once."""
    rows: dict[str, str] = {}
    for line in text.splitlines():
        if re.match(r"#?\s*DCGM_\w+\s*,|#?\s*dcgm_\w+\s*,", line):
            row = line.lstrip("# ")
            rows.setdefault(row.split(",")[0].strip(), row)
    return "\n".join(rows.values()) + "\n"


def compared(
    program: Path, chosen: Path, options: DcgmOptions, old: bool, source: str
) -> tuple[int, str, int, int, int]:
    """How many fields the list has, which of them are absent here, our lines, and how many of them are the peer's."""
    collectors, _ = parse_collectors(chosen.read_text(), SERVED)
    ours = text_of(Shape(collectors, old_namespace=old), options).splitlines()
    given: dict[str, list[dict[str, Any]]] = {}
    for line in ours:
        match = SAMPLE.match(line)
        if match is not None:
            given.setdefault(match[1], []).append(metric_of(match[2], match[3], old))
    done = subprocess.run([program, chosen], input=json.dumps(given), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{chosen.name}: {done.stderr}")
    # The text is of a simulation, and says so. A family without a series has only its head.
    ours = [line for line in ours if line.split()[1] != "SIMULATED:" and (line[0] != "#" or line.split()[2] in given)]
    theirs = done.stdout.splitlines()
    absent = [line.split()[2] for line in theirs if line.startswith("# ABSENT") and not line.endswith(" label")]
    fields = len(absent) + sum(line.startswith("# TYPE") for line in theirs)
    same = sum(line in theirs for line in ours)
    in_any_order = {unordered(line) for line in theirs}
    reordered = sum(line not in theirs and unordered(line) in in_any_order for line in ours)
    names = {
        name for series in given.values() for metric in series for name in (*metric["labels"], *metric["attributes"])
    }
    foreign = [name for name in names if f'"{name}"' not in source and name not in collectors.labels]
    if foreign:
        raise SystemExit(f"labels that dcgm-exporter does not have: {foreign}")
    for line in ours:
        if unordered(line) not in in_any_order:
            print("only ours:", line)
    return fields, ", ".join(absent) or "-", len(ours), same, reordered


def metric_of(labels: str, value: str, old: bool) -> dict[str, Any]:
    metric: dict[str, Any] = {"value": value, "uuid": "uuid" if old else "UUID", "labels": {}, "attributes": {}}
    for name, text in LABEL.findall(labels):
        if name in OWN:
            metric[OWN[name]] = text
        elif name == metric["uuid"]:
            metric["gpu_uuid"] = text
        else:
            kind = "attributes" if name in ATTRIBUTES | (OLD_ATTRIBUTES if old else set()) else "labels"
            metric[kind][name] = text
    return metric


def unordered(line: str) -> tuple[object, ...]:
    match = SAMPLE.match(line)
    return (line,) if match is None else (match[1], frozenset(LABEL.findall(match[2])), match[3])


if __name__ == "__main__":
    main()
