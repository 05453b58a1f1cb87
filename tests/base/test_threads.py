"""At the limit of tasks (TasksMax): what needs a thread fails with a reason, and works again later."""

import json
import os
import subprocess
import sys
import threading

import pytest

from gpucommons.base.threads import WorkerThread

# RLIMIT_NPROC stands for the limit of the service: the kernel refuses a thread in the same way. Not for root.
SCRIPT = """
import asyncio, json, os, resource, threading, time
from gpucommons.base.threads import ThreadsExhausted, in_daemon_thread

os.setgid(61234)
os.setuid(61234)
resource.setrlimit(resource.RLIMIT_NPROC, (12, 12))
release = threading.Event()

async def run():
    works = [asyncio.create_task(in_daemon_thread(release.wait)) for _ in range(50)]
    await asyncio.sleep(0.5)
    release.set()
    found = await asyncio.gather(*works, return_exceptions=True)
    refused = [str(each) for each in found if isinstance(each, ThreadsExhausted)]
    print(json.dumps([found.count(True), refused, await in_daemon_thread(lambda: "again")]))

asyncio.run(run())
"""


def test_a_worker_goes_on_after_an_error_and_ends_after_its_work(caplog: pytest.LogCaptureFixture) -> None:
    worker, done = WorkerThread("tests"), []
    assert worker.native_id == 0
    assert WorkerThread("never used").close(1.0)
    worker.submit(lambda: 1 / 0)
    worker.submit(lambda: done.append(threading.current_thread().name))
    assert worker.close(30.0)
    assert done == ["tests"]
    assert [record.message for record in caplog.records] == ["tests: an unexpected error; it goes on"]


def test_work_that_hangs_is_left_behind() -> None:
    worker, release = WorkerThread("tests"), threading.Event()
    worker.submit(release.wait)
    assert not worker.close(0.05)
    release.set()
    assert worker.close(30.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user without other processes")
def test_a_thread_that_the_kernel_refuses() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    ran, refused, again = json.loads(done.stdout)
    assert ran + len(refused) == 50
    assert 1 <= ran <= 12
    assert set(refused) == {"no thread can be started: the limit of tasks is reached (TasksMax)"}
    assert again == "again"
