"""On a real GPU: comparison with nvidia-smi. Constant values are equal, changing values are close.

Read in a separate process: in this one the fake driver may be loaded under the real one's name. The MIG layout of the
machine is changed only with TEST_MIG=1.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fakes.nvml.children import Child, child

pytestmark = pytest.mark.gpu

MIB = 2**20
# nvidia-smi's field, ours, factor from its unit to ours
EXACT: tuple[tuple[str, str, float], ...] = (
    ("index", "index", 1),
    ("memory.total", "memory_total_bytes", MIB),
    ("memory.reserved", "memory_reserved_bytes", MIB),
    ("power.min_limit", "power_limit_min_watts", 1),
    ("power.max_limit", "power_limit_max_watts", 1),
    ("power.default_limit", "power_limit_default_watts", 1),
    ("enforced.power.limit", "power_limit_watts", 1),
    ("clocks.max.sm", "clock_sm_max_mhz", 1),
    ("clocks.max.memory", "clock_memory_max_mhz", 1),
    ("pcie.link.gen.max", "pcie_generation_max", 1),
    ("pcie.link.width.max", "pcie_width_max", 1),
    ("pcie.link.width.current", "pcie_width", 1),
    ("ecc.errors.corrected.volatile.total", "ecc_corrected_volatile", 1),
    ("ecc.errors.uncorrected.volatile.total", "ecc_uncorrected_volatile", 1),
    ("ecc.errors.corrected.aggregate.total", "ecc_corrected_aggregate", 1),
    ("ecc.errors.uncorrected.aggregate.total", "ecc_uncorrected_aggregate", 1),
    ("remapped_rows.correctable", "remapped_rows_corrected", 1),
    ("remapped_rows.uncorrectable", "remapped_rows_uncorrected", 1),
    ("retired_pages.single_bit_ecc.count", "retired_pages_single_bit", 1),
    ("retired_pages.double_bit.count", "retired_pages_double_bit", 1),
    ("fan.speed", "fan_percent", 1),
)
TEXTS = (
    ("uuid", "uuid"),
    ("name", "name"),
    ("pci.bus_id", "pci_bus_id"),
    ("serial", "serial"),
    ("vbios_version", "vbios_version"),
)
# And the largest difference of two successive readings, absolute and relative.
MOVING: tuple[tuple[str, str, float, float, float], ...] = (
    ("memory.used", "memory_used_bytes", MIB, 512 * MIB, 0.02),
    ("memory.free", "memory_free_bytes", MIB, 512 * MIB, 0.02),
    ("temperature.gpu", "temperature_celsius", 1, 6, 0),
    ("temperature.memory", "memory_temperature_celsius", 1, 6, 0),
    ("power.draw.average", "power_watts", 1, 80, 0.3),
    ("clocks.sm", "clock_sm_mhz", 1, 600, 0.3),
    ("clocks.mem", "clock_memory_mhz", 1, 0, 0.5),
    ("utilization.gpu", "utilization_percent", 1, 40, 0),
    ("utilization.memory", "memory_utilization_percent", 1, 40, 0),
)


def smi(*arguments: str) -> str:
    return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=True, timeout=60).stdout


def query(*fields: str) -> list[dict[str, str]]:
    rows = smi(f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits").strip().splitlines()
    return [dict(zip(fields, (cell.strip() for cell in row.split(",")), strict=True)) for row in rows]


def known(text: str) -> bool:
    return not re.match(r"\[?(N/A|Not Supported|Unknown)", text)


@pytest.fixture(scope="module")
def reader() -> Iterator[Child]:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("needs a real NVIDIA GPU: there is no nvidia-smi")
    with child({}) as reader:
        first = reader.read()
        if "gpus" not in first:
            pytest.skip(f"needs a real NVIDIA GPU: {first}")
        time.sleep(1)
        yield reader


@pytest.fixture
def gpus(reader: Child) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = reader.read()["gpus"]
    return found


@pytest.mark.parametrize(("theirs", "ours"), TEXTS)
def test_strings_are_equal(gpus: list[dict[str, Any]], theirs: str, ours: str) -> None:
    assert [gpu[ours] for gpu in gpus] == [row[theirs] if known(row[theirs]) else None for row in query(theirs)]


@pytest.mark.parametrize(("theirs", "ours", "factor"), EXACT)
def test_constant_values_are_equal(gpus: list[dict[str, Any]], theirs: str, ours: str, factor: float) -> None:
    for gpu, row in zip(gpus, query(theirs), strict=True):
        if not known(row[theirs]):
            assert gpu[ours] is None
        elif factor == MIB:
            # nvidia-smi prints whole MiB, some rounded up, so that used, reserved and free sum to the total.
            assert gpu[ours] / MIB == pytest.approx(int(row[theirs]), abs=1)
        else:
            assert gpu[ours] == pytest.approx(float(row[theirs]) * factor)


@pytest.mark.parametrize(("theirs", "ours", "factor", "absolute", "relative"), MOVING)
def test_changing_values_are_close(
    reader: Child, theirs: str, ours: str, factor: float, absolute: float, relative: float
) -> None:
    """Read before and after nvidia-smi: one of the two values must be close."""
    before = reader.read()["gpus"]
    rows = query(theirs)
    after = reader.read()["gpus"]
    for first, row, second in zip(before, rows, after, strict=True):
        if not known(row[theirs]):
            assert second[ours] is None
            continue
        value = float(row[theirs]) * factor
        assert any(one == pytest.approx(value, abs=absolute, rel=relative) for one in (first[ours], second[ours])), (
            first[ours],
            value,
            second[ours],
        )


def test_performance_state_and_mig_mode(gpus: list[dict[str, Any]]) -> None:
    for gpu, row in zip(gpus, query("pstate", "mig.mode.current"), strict=True):
        assert f"P{gpu['performance_state']}" == row["pstate"]
        expected = {"Enabled": True, "Disabled": False}.get(row["mig.mode.current"])
        assert gpu["mig_enabled"] == expected


def test_the_driver(reader: Child) -> None:
    assert reader.read()["driver"] == query("driver_version")[0]["driver_version"]


def test_nothing_fails_and_nothing_is_dropped(reader: Child) -> None:
    """At the agent's interval: GPM's counters fail if they are read in quick succession."""
    time.sleep(1)
    before = reader.read()["dropped"]
    for _ in range(5):
        time.sleep(1)
        answer = reader.read()
    assert answer["failures"] == {}
    assert answer["dropped"] == before


def test_gpm_is_there_on_hopper_and_newer(gpus: list[dict[str, Any]]) -> None:
    for gpu, row in zip(gpus, query("compute_cap"), strict=True):
        if float(row["compute_cap"]) < 9:
            pytest.skip("GPM requires Hopper or newer")
        assert gpu["gpm"] is not None
        assert 0 <= gpu["gpm"]["graphics_ratio"] <= 1
        assert gpu["gpm"]["pcie_tx_bytes_per_s"] >= 0
        assert gpu["pcie_tx_bytes_per_s"] is None, "the 20 ms call is not made"


LOAD = """
import torch, time
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
print("ready", flush=True)
end = time.monotonic() + 30
while time.monotonic() < end:
    for _ in range(50):
        a = (a @ a).clamp(-1, 1)
    torch.cuda.synchronize()
"""


def test_a_process_is_seen_with_its_memory_and_utilisation(reader: Child) -> None:
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode:
        pytest.skip("needs torch for a load")
    load = subprocess.Popen([sys.executable, "-c", LOAD], stdout=subprocess.PIPE, text=True)
    try:
        assert load.stdout is not None
        assert load.stdout.readline() == "ready\n"
        for _ in range(6):
            time.sleep(1)
            answer = reader.read()
        apps = smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits").strip().splitlines()
        theirs = {int(pid): int(used) for pid, used in (row.split(",") for row in apps)}
        rows = [row for gpu in answer["gpus"] for row in gpu["processes"] or ()]
        ours = {row["pid"]: row["used_memory_bytes"] // MIB for row in rows}
        assert ours == pytest.approx(theirs, abs=64)
        busy = max(rows, key=lambda row: row["sm_percent"] or 0)
        assert busy["sm_percent"] > 20
        assert answer["gpus"][0]["gpm"] is None or answer["gpus"][0]["gpm"]["tensor_ratio"] > 0.1
    finally:
        load.kill()
        load.wait()


def layout_within(reader: Child, expected: int, seconds: float) -> list[str]:
    until = time.monotonic() + seconds
    found: list[str] = []
    while time.monotonic() < until:
        answer = reader.read()
        found = answer["gpus"][0]["mig"] if answer.get("gpus") else found
        if len(found) == expected:
            return found
        time.sleep(1)
    return found


def test_a_mig_layout_changes_while_it_is_read(reader: Child) -> None:
    """Enables and disables MIG on GPU 0: each change is seen within 10 s, and the reader does not block it."""
    if os.environ.get("TEST_MIG") != "1":
        pytest.skip("changes GPU 0 of this machine: set TEST_MIG=1 to run it")
    switched = subprocess.run(["nvidia-smi", "-i", "0", "-mig", "1"], capture_output=True, text=True)
    try:
        until = time.monotonic() + 30
        while query("mig.mode.current")[0]["mig.mode.current"] != "Enabled":
            reader.read()
            if time.monotonic() > until:
                pytest.skip(f"MIG cannot be enabled here: {switched.stdout}{switched.stderr}")
            time.sleep(1)
        smi("mig", "-i", "0", "-cgi", "19,14", "-C")
        assert len(layout_within(reader, 2, 10)) == 2
        for _ in range(3):
            reader.read()
            time.sleep(1)
        # Reading continues: if a handle were held, these would fail with "In use by another client".
        smi("mig", "-i", "0", "-dci")
        smi("mig", "-i", "0", "-dgi")
        assert layout_within(reader, 0, 10) == []
    finally:
        for arguments in (["mig", "-i", "0", "-dci"], ["mig", "-i", "0", "-dgi"], ["-i", "0", "-mig", "0"]):
            subprocess.run(["nvidia-smi", *arguments], capture_output=True)
