"""A simulated procfs with the files that attribution reads."""

from pathlib import Path

STAT_AFTER_NAME = "S 1 1 1 0 -1 4194304 100 0 0 0 5 3 0 0 20 0 1 0 {start} 1000000 200 0 0 0"


def status_text(name: str, uid: int, pids: tuple[int, ...]) -> str:
    """Includes lines that are not read, to be skipped."""
    ids = "\t".join([str(uid)] * 4)
    below = "\t".join(map(str, pids))
    return (
        f"Name:\t{name}\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t{pids[0]}\nPid:\t{pids[0]}\nPPid:\t1\n"
        f"Uid:\t{ids}\nGid:\t{ids}\nNStgid:\t{below}\nNSpid:\t{below}\nNSsid:\t0\nVmRSS:\t    1024 kB\n"
    )


def add_process(
    procfs: Path,
    pid: int,
    *,
    name: str = "python",
    start_ticks: int = 100,
    uid: int = 1000,
    cgroup: str = "0::/\n",
    inner_pids: tuple[int, ...] = (),
    open_files: tuple[str, ...] = (),
    command_line: tuple[str, ...] = ("python", "train.py"),
) -> Path:
    process = procfs / str(pid)
    (process / "fd").mkdir(parents=True)
    (process / "stat").write_text(f"{pid} ({name}) {STAT_AFTER_NAME.format(start=start_ticks)}\n")
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n")
    (process / "status").write_text(status_text(escaped, uid, (pid, *inner_pids)))
    (process / "cgroup").write_text(cgroup)
    (process / "comm").write_text(f"{name[:15]}\n")
    (process / "cmdline").write_bytes(b"".join(argument.encode() + b"\0" for argument in command_line))
    for number, target in enumerate(open_files):
        (process / "fd" / str(number)).symlink_to(target)
    return process
