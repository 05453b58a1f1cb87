"""`gpucommons run` on a real GPU: two torch programs share it, a third command waits; reports against nvidia-smi.

As root: the programs take turns.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from statistics import mean
from typing import Any

import pytest

from leases.gpu_node import NEEDS_GPU, GpuNode, gpu_node
from running import command
from scheduler.torch_programs import PROGRAM
from waiting import until

pytestmark = [
    *NEEDS_GPU,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs nvidia-smi"),
]
SHARED_S, ALONE_S = 30.0, 10.0
HELD_GIB = (6.0, 3.0)


class Watch:
    """The watts of the first GPU twice a second, by nvidia-smi."""

    QUERY = ("nvidia-smi", "--id=0", "--query-gpu=power.draw", "--format=csv,noheader,nounits")

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []
        self.process = subprocess.Popen([*self.QUERY, "-lms", "500"], stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen.append((time.monotonic(), float(line)))

    def mean_watts(self, from_s: float, to_s: float) -> float:
        return mean(watts for at_s, watts in self.seen if from_s <= at_s <= to_s)


def smi_memory_mib() -> dict[int, int]:
    """By pid, as nvidia-smi lists it."""
    query = ("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    found = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return {int(pid): int(used) for pid, used in (line.split(",") for line in found.splitlines())}


def start(node: GpuNode, gib: float, *options: str) -> "subprocess.Popen[str]":
    """A program that multiplies matrices until it is ended."""
    counter = node.directory / f"counter-{time.monotonic_ns()}"
    counter.write_bytes(bytes(8))
    return node.run(options, (sys.executable, str(PROGRAM), "4096", str(counter), "0", str(gib)))


def end(*processes: "subprocess.Popen[str]") -> list[str]:
    """What each `run` printed at the end."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    printed = [process.communicate(timeout=60)[1] for process in processes]
    assert {process.returncode for process in processes} == {128 + signal.SIGTERM}, printed
    return printed


def job_report(node: GpuNode, id: str) -> Any:
    answer = command("report", "--job", f"lease-{id}", "--json", "--connect", node.agent.url)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)["job"]


def reports_by_job(node: GpuNode) -> Any:
    answer = command("report", "--by", "job", "--json", "--connect", node.agent.url)
    return json.loads(answer.stdout)["accounts"]["30d"]["jobs"]


@pytest.fixture
def node() -> Iterator[GpuNode]:
    prices = {"GPUCOMMONS_ACCOUNTS_PRICE_PER_GPU_HOUR": "*=3", "GPUCOMMONS_ACCOUNTS_CURRENCY": "EUR"}
    with gpu_node("--scheduler", "--share", settings=prices) as made:
        yield made


def test_two_commands_share_a_gpu_and_a_third_waits(node: GpuNode) -> None:
    watch = Watch()
    begun_s = time.monotonic()
    sharing = [start(node, gib, "--share", "--memory", "20GiB") for gib in HELD_GIB]
    until(lambda: len(node.queue()["leases"]) == 2, "both have the GPU", within_s=30)
    # They are listed by age; the order in which the two asked is not known.
    ids = list(node.queue()["leases"])
    third = start(node, 1.0)
    until(lambda: len(node.queue()["waiting"]) == 1, "the third waits", within_s=30)
    until(lambda: len(smi_memory_mib()) == 2, "both programs use the GPU", within_s=60)
    time.sleep(SHARED_S)
    memory_mib = sorted(smi_memory_mib().values())
    assert list(node.queue()["waiting"]), "it still waits"
    assert "in turns" in command("scheduler", "status", "--connect", node.agent.url).stdout
    shared_end_s = time.monotonic()
    printed = end(*sharing)
    until(lambda: not node.queue()["waiting"], "the third has the GPU", within_s=10)
    begun_alone_s = time.monotonic()
    until(lambda: len(smi_memory_mib()) == 1, "its program uses the GPU", within_s=60)
    time.sleep(ALONE_S)
    (last,) = node.queue()["leases"]
    printed += end(third)
    watch.process.kill()
    jobs = [job_report(node, id) for id in (*ids, last)]

    # The report of each command is that of the ledger.
    for text in printed:
        hours = float(re.findall(r"([0-9.]+) GPU-hours", text)[0])
        assert any(round(job["total"]["held_gpu_hours"], 3) == hours for job in jobs), (hours, jobs)
    by_job = reports_by_job(node)
    for id, job in zip((*ids, last), jobs, strict=True):
        assert by_job[f"lease-{id}"] == job["total"]
    # Memory as nvidia-smi listed it.
    peaks_mib = sorted(job["peak_memory_bytes"] / 2**20 for job in jobs[:2])
    assert peaks_mib == pytest.approx(memory_mib, abs=64)
    # Energy: that of the GPU while the two ran, of which each has its part.
    smi_kwh = watch.mean_watts(begun_s, shared_end_s) * (shared_end_s - begun_s) / 3.6e6
    ledger_kwh = sum(job["total"]["energy_kwh"] for job in jobs[:2])
    assert ledger_kwh == pytest.approx(smi_kwh, rel=0.1)
    # They share the GPU: together they hold it for as long as it was given to them.
    held_h = sum(job["total"]["gpu_equivalent_hours"] for job in jobs[:2])
    assert held_h == pytest.approx((shared_end_s - begun_s) / 3600, rel=0.1)
    assert jobs[2]["waited_s"] == pytest.approx(begun_alone_s - begun_s, abs=10)
    assert re.search(r"waited \d+ s", printed[2]), printed[2]
