"""Slurm's accounting database: slurmdbd with a MariaDB of its own, on loopback."""

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from needs import needs_program
from waiting import until

_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "my_print_defaults")
# Its hundred tables would take a minute on a slow disk.
_WITHOUT_DISK = ("--debug-no-sync", "--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=0")


def accounting_lines(port: int, munge: Path) -> list[str]:
    """Those of slurm.conf. `munge` is its socket."""
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={port}",
        f"AccountingStoragePass={munge}",
    ]


@contextmanager
def accounting_database(
    directory: Path, environment: Mapping[str, str], munge: Path, port: int, database_port: int
) -> Iterator[None]:
    """`directory` is that of the cluster; its slurm.conf is written, and slurmctld not yet started."""
    needs_program(*_PROGRAMS)
    data, log = directory / "database", directory / "log"
    common = ["--no-defaults", f"--datadir={data}", "--user=root"]
    install = ["mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(install, check=True, capture_output=True, timeout=60)
    config = directory / "etc" / "slurmdbd.conf"
    config.write_text(
        f"""\
AuthType=auth/munge
AuthInfo=socket={munge}
DbdHost={socket.gethostname()}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=root
StorageLoc=slurm
LogFile={log}/slurmdbd.log
PidFile={directory}/slurmdbd.pid
"""
    )
    config.chmod(0o600)
    started: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, **environment}

    def start(name: str, *options: str) -> None:
        with open(log / f"{name}.err.log", "wb") as errors:
            started.append(subprocess.Popen([name, *options], env=environment, stdout=errors, stderr=errors))

    def is_known() -> bool:
        """slurmctld waits for a database that knows its cluster."""
        add = ["sacctmgr", "-i", "add", "cluster", "test"]
        return subprocess.run(add, env=environment, capture_output=True, timeout=60).returncode == 0

    try:
        listen = ("--bind-address=127.0.0.1", f"--port={database_port}", f"--socket={data}/socket")
        start("mariadbd", *common, *listen, f"--pid-file={data}/pid", *_WITHOUT_DISK)
        until((data / "socket").exists, "MariaDB answers")
        start("slurmdbd", "-D")
        until(is_known, "the database knows the cluster", 60)
        yield
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()
