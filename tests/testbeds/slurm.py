"""A real Slurm with fake GPUs on this machine: munge, slurmctld and slurmd of the distribution, as root, on loopback.

Its configuration is the one that `gpucommons slurm config` prints, and what a machine without systemd needs beyond it.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from gpucommons.slurm.configuration import NodePlan, files, night_file
from needs import needs_program, needs_root
from testbeds.slurm_accounting import accounting_database, accounting_lines
from waiting import until

_PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "setpriv")
_CGROUPS = "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n"
# The cgroups of its jobs have this name: two clusters of one name on a machine would end each other's jobs.
NODE = f"testnode{os.getpid()}"


class SlurmCluster:
    """One node. `environment` is for Slurm's commands, and for an agent that asks them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "log"
        self.config = directory / "etc" / "slurm.conf"
        self.environment = {"SLURM_CONF": str(self.config)}

    def run(self, *command: str, within_s: float = 60.0) -> str:
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=within_s
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def submit(self, script: str, *options: str) -> str:
        """The id of the batch job; its output is DIRECTORY/out-ID."""
        path = self.directory / "script.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        out = str(self.directory / "out-%j")
        return self.run("sbatch", "--parsable", "-o", out, "--chdir=/", *options, str(path)).strip()

    def output(self, job: str) -> str:
        path = self.directory / f"out-{job}"
        return path.read_text() if path.exists() else ""

    def state(self, job: str) -> str:
        return self.run("squeue", "-h", "-t", "all", "-o", "%T", "-j", job).strip()

    def reason(self, job: str) -> str:
        """Why it waits."""
        return self.run("squeue", "-h", "-o", "%r", "-j", job).strip()

    def wait_for(self, job: str, state: str, within_s: float = 40) -> None:
        until(lambda: self.state(job) == state, f"job {job} is {state}; {self.logs()}", within_s)

    def cancel_all(self) -> None:
        """Jobs of every user, also suspended ones; returns when their epilogs have run."""
        environment = {**os.environ, **self.environment}
        for job in self.run("squeue", "-h", "-o", "%A").split():
            # It fails for a job that has ended meanwhile.
            for options in (["--signal=KILL", "--full"], []):
                subprocess.run(["scancel", *options, job], env=environment, capture_output=True, timeout=60)
        until(lambda: not self.run("squeue", "-h"), f"no job is left; {self.logs()}")

    def check_health_every(self, seconds: int) -> None:
        """By slurmd, with the printed script; at first it does so once an hour."""
        text = re.sub(r"HealthCheckInterval=\d+", f"HealthCheckInterval={seconds}", self.config.read_text())
        self.config.write_text(text)
        self.run("scontrol", "reconfigure")

    def node(self) -> str:
        return self.run("scontrol", "show", "node", "-o", NODE)

    def logs(self) -> str:
        return "".join(
            f"\n{path.name}: {path.read_text(errors='replace')[-3000:]}" for path in sorted(self.log.glob("*.log"))
        )


@contextmanager
def slurm_cluster(
    directory: Path, plan: NodePlan, hook_options: str, *, accounting: bool = False
) -> Iterator[SlurmCluster]:
    """`plan` without GPU files: they are made here, as are scripts. `hook_options` are those of the three hooks.

    With `accounting`, jobs are kept in a database (sacct).
    """
    needs_root()
    needs_program(*_PROGRAMS)
    cluster = SlurmCluster(directory)
    for name in ("munge", "dev", "spool", "state", "log", "etc"):
        (directory / name).mkdir(parents=True)
    directory.chmod(0o755)
    gpu_files = [str(directory / "dev" / f"nvidia{index}") for index in range(len(plan.gpu_files))]
    for device in (*gpu_files, *map(night_file, gpu_files)):
        subprocess.run(["mknod", "-m", "666", device, "c", "1", "3"], check=True)
    environment = {"PATH": os.environ["PATH"], **cluster.environment}
    plan = replace(plan, node=NODE, gpu_files=gpu_files, scripts=str(directory / "etc"), environment=environment)
    ports = _free_ports(4)
    for name, text in files(plan).items():
        path = directory / "etc" / name
        for hook in ("prolog", "epilog", "task-prolog"):
            text = text.replace(f"hooks.py {hook}", f"hooks.py {hook} {hook_options}")
        path.write_text(_slurm_conf(cluster, text, ports, accounting) if name == "slurm.conf" else text)
        path.chmod(0o755)
    (directory / "etc" / "cgroup.conf").write_text(_CGROUPS)
    munge = _start_munge(directory / "munge")
    started: list[subprocess.Popen[bytes]] = []
    database = ExitStack()
    try:
        if accounting:
            database.enter_context(accounting_database(directory, cluster.environment, _munge(directory), *ports[2:]))
        for daemon in (["slurmctld", "-D", "-c"], ["slurmd", "-D", "-c", "-N", NODE]):
            with open(cluster.log / f"{daemon[0]}.err", "wb") as errors:
                command = [*daemon, "-f", str(cluster.config)]
                started.append(subprocess.Popen(command, env={**os.environ, **cluster.environment}, stderr=errors))
        until(lambda: _idle(cluster), f"the node is idle; {cluster.logs()}", 60)
        yield cluster
    finally:
        with suppress(AssertionError):
            cluster.cancel_all()
        for process in reversed(started):
            process.terminate()
        for process in started:
            _end(process)
        _end_steps(cluster)
        database.close()
        munge.terminate()
        _end(munge)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """It has been asked to end."""
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_steps(cluster: SlurmCluster) -> None:
    """A step that ends after slurmctld would try for minutes to report it."""
    config = f"SLURM_CONF={cluster.config}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "comm").read_text() == "slurmstepd\n" and config in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def _idle(cluster: SlurmCluster) -> bool:
    done = subprocess.run(
        ["sinfo", "-h", "-o", "%t"], env={**os.environ, **cluster.environment}, capture_output=True, text=True
    )
    return done.stdout.split()[:1] == ["idle"]


def _munge(directory: Path) -> Path:
    """Its socket, below the directory of a cluster."""
    return directory / "munge" / "s.2"


def _start_munge(directory: Path) -> "subprocess.Popen[bytes]":
    (directory / "key").write_bytes(os.urandom(1024))
    (directory / "key").chmod(0o400)
    for path in (directory, directory / "key"):
        shutil.chown(path, "munge", "munge")
    paths = {"socket": "s.2", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    process = subprocess.Popen(
        [
            *("setpriv", "--reuid", "munge", "--regid", "munge", "--clear-groups", "munged", "--force", "--foreground"),
            *(f"--{name}={directory / file}" for name, file in paths.items()),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: (directory / "s.2").exists(), "munged answers")
    return process


def _free_ports(count: int) -> list[int]:
    with_ports = [socket.socket() for _ in range(count)]
    for one in with_ports:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in with_ports]
    for one in with_ports:
        one.close()
    return ports


def _slurm_conf(cluster: SlurmCluster, printed: str, ports: list[int], accounting: bool) -> str:
    d = cluster.directory
    printed = printed.replace("Nodes=NODES", f"Nodes={NODE} State=UP MaxTime=INFINITE").replace(
        "HealthCheckInterval=60", "HealthCheckInterval=3600"
    )
    lines = []
    for line in printed.splitlines():
        if line.startswith("NodeName="):
            # A name that is not the host's: slurmd is started with -N.
            line = line.replace(
                " ...", f" NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 CPUs=8 RealMemory=4000"
            )
        # slurmctld of Debian 12 cannot count CPU time without its cgroup of accounting; the hook is tested by itself.
        lines.append(line)
    if "PartitionName" not in printed:
        lines.append(f"PartitionName=all Nodes={NODE} Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(
        [
            "ClusterName=test",
            f"SlurmctldHost={socket.gethostname()}(127.0.0.1)",
            "AuthType=auth/munge",
            # A requeued job waits until its old credential has expired: 120 s, if not set.
            f"AuthInfo=socket={_munge(d)},cred_expire=15",
            "CredType=cred/munge",
            f"SlurmctldPort={ports[0]}",
            f"SlurmdPort={ports[1]}",
            "SlurmUser=root",
            f"StateSaveLocation={d}/state",
            f"SlurmdSpoolDir={d}/spool",
            f"SlurmctldPidFile={d}/slurmctld.pid",
            f"SlurmdPidFile={d}/slurmd.pid",
            f"SlurmctldLogFile={d}/log/slurmctld.log",
            f"SlurmdLogFile={d}/log/slurmd.log",
            "TaskPlugin=task/none",
            "SwitchType=switch/none",
            "MpiDefault=none",
            "SelectTypeParameters=CR_Core",
            *(
                accounting_lines(ports[2], _munge(d))
                if accounting
                else ["AccountingStorageType=accounting_storage/none"]
            ),
            "ReturnToService=2",
            "SlurmdParameters=config_overrides",
            *lines,
            "",
        ]
    )
