"""Builds the fake `libnvidia-ml.so.1` from its C parts and the recordings of a real GPU."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fakes.compiler import compile_c
from fakes.gpu.build import ACCOUNT

HERE = Path(__file__).resolve().parent
SONAME = "libnvidia-ml.so.1"
ERROR_CODES = {
    "Invalid Argument": 2,
    "Not Supported": 3,
    "Not Found": 6,
    "Function Not Found": 13,
    "System is not in ready state": 27,
    "Unknown Error": 999,
}
# nvidia-ml-py calls list functions twice, for the length and for the entries: two calls were recorded.
ASKED_TWICE = ("RunningProcesses", "ProcessUtilization")


def numbers_of(value: Any) -> list[int]:
    if isinstance(value, bool | int | float):
        return [int(value)]
    if isinstance(value, dict):
        return [int(v) for v in value.values() if isinstance(v, int | float)]
    if isinstance(value, list):
        return [n for v in value[:8] for n in numbers_of(v)]
    return []


def record(name: str, entry: dict[str, Any]) -> str:
    value = entry.get("value")
    numbers = numbers_of(value)[:8]
    code = ERROR_CODES[entry["error"]] if isinstance(entry.get("error"), str) else int(entry.get("error", 0))
    cost = float(entry.get("us", 0.0))
    if value and any(part in name for part in ASKED_TWICE):
        cost /= 2
    text = json.dumps(value) if isinstance(value, str) else "NULL"
    values = ", ".join(f"{n}LL" if n < 2**63 else f"(long long){n}ULL" for n in numbers) or "0"
    return f'    {{"{name}", {code}, {len(numbers)}, {{{values}}}, {text}, {cost}}},'


def records(recording: dict[str, Any]) -> Iterator[str]:
    device = recording["device"]
    # Two values that were not recorded: the graphics clock equals the SM clock, the memory clock is constant.
    device["nvmlDeviceGetClockInfo.GRAPHICS"] = device["nvmlDeviceGetClockInfo.SM"]
    device["nvmlDeviceGetMaxClockInfo.MEM"] = {
        "value": device["nvmlDeviceGetSupportedMemoryClocks"]["value"][0],
        "us": device["nvmlDeviceGetMaxClockInfo.SM"]["us"],
    }
    for name, entry in {**recording["system"], **device}.items():
        yield record(name, entry)
    for entry in recording["fields"].values():
        value = None if "error" in entry else [entry["value"], entry["type"]]
        yield record(f"field.{entry['id']}", {**entry, "value": value})
    for metric, entry in recording["gpm"].items():
        yield record(f"gpm.{metric}", {"value": round(entry["value"] * 1e6)})
    yield record("nvmlGpmSampleGet", {"value": 0, "us": recording["gpm_sample_us"]})


def header() -> str:
    lines = ["/* Made by build.py from recordings/. */"]
    for name in ("idle", "busy"):
        recording = json.loads((HERE / "recordings" / f"{name}.json").read_text())
        lines += [f"static const struct record {name}_records[] = {{", *records(recording)]
        lines += ["    {NULL, 0, 0, {0}, NULL, 0}", "};"]
    return "\n".join(lines) + "\n"


def build(into: Path, without: Iterable[str] = (), nvml_version: str = "") -> Path:
    """Build into a directory, without the named symbols, as in an older driver.

    Replaces an existing library as a package manager does: the old file remains where it is mapped.
    """
    into.mkdir(parents=True, exist_ok=True)
    (into / "recording.h").write_text(header())
    hidden = " ".join(f"{name};" for name in without)
    (into / "symbols.map").write_text(f"{{ global: *; {f'local: {hidden}' if hidden else ''} }};\n")
    defines = [f'-DNVML_VERSION="{nvml_version}"'] if nvml_version else []
    linked = [f"-Wl,-soname,{SONAME}", "-Wl,--version-script={directory}/symbols.map"]
    return compile_c(
        into / SONAME,
        [*(HERE / part for part in ("control.c", "devices.c", "instances.c")), ACCOUNT],
        ["-shared", "-fPIC", *defines, *linked],
        generated=[into / "recording.h", into / "symbols.map"],
    )
