"""Debian's node_exporter in a process of its own, with the collectors that the nodeexporter dialect covers."""

import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from needs import needs_program
from prometheus_server import answers, free_port
from waiting import until

COLLECTORS = (
    *("cpu", "loadavg", "meminfo", "filesystem", "diskstats", "netdev", "vmstat", "stat", "uname", "time"),
    *("filefd", "pressure", "conntrack", "sockstat", "hwmon"),
    *("timex", "textfile", "netstat", "netclass", "softnet", "bonding", "mdadm"),
)
PROGRAM = "prometheus-node-exporter"


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        text: str = answer.read().decode()
        return text


@contextmanager
def running_node_exporter(*arguments: str) -> Iterator[str]:
    """The address of its metrics. Debian changes some defaults: a test sets what it compares."""
    needs_program(PROGRAM)
    address = f"127.0.0.1:{free_port()}"
    command = [PROGRAM, f"--web.listen-address={address}", "--collector.disable-defaults"]
    command += [f"--collector.{name}" for name in COLLECTORS]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: answers(f"http://{address}/"), "node_exporter answers")
        yield f"http://{address}/metrics"
    finally:
        process.kill()
        process.wait()
