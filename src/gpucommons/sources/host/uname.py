"""Names and versions of kernel and node: the system call uname, and the NIS domain, which Python leaves out."""

import os
from pathlib import Path

from gpucommons.model.host import Uname
from gpucommons.sources.host.procfs import read_file


def read_uname(procfs: Path) -> Uname:
    own = os.uname()
    domain = read_file(procfs, "sys/kernel/domainname").decode("utf-8", "surrogateescape").rstrip("\n")
    return Uname(own.sysname, own.release, own.version, own.machine, own.nodename, domain)
