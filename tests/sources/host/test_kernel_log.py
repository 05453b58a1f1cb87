"""XIDs of the kernel log: lines of several releases of the driver, from a file, a pipe, and one that is refused."""

import errno
import os
from pathlib import Path

import pytest

from gpucommons.sources.host.kernel_log import KernelLogReader, xid_line
from gpucommons.sources.source import SourceAbsent

# As drivers wrote them, from reports of their users.
LINES = {
    # 304 to 440: no process.
    "NVRM: Xid (PCI:0000:01:00): 31, Ch 00000003, engmask 00000101, intr 10000000": ("0000:01:00", 31, None, ""),
    # 450 to 495: the pid.
    "NVRM: Xid (PCI:0000:01:00): 79, pid=1122, GPU has fallen off the bus.": ("0000:01:00", 79, 1122, ""),
    # 515.
    "NVRM: Xid (PCI:0000:08:00): 31, pid=169800, name=chrome, Ch 00000023, intr 00000000. MMU Fault: ENGINE CE0": (
        *("0000:08:00", 31, 169800, "chrome"),
    ),
    # 535, where it does not know the process.
    "NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7)": (
        *("0000:cb:00", 13, None, ""),
    ),
    # 575.
    "NVRM: Xid (PCI:0000:c1:00): 31, pid=2646416, name=python, channel 0x0000001a, intr 00000000. MMU Fault": (
        *("0000:c1:00", 31, 2646416, "python"),
    ),
    # 590.
    "NVRM: Xid (PCI:0000:DC:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149": (
        *("0000:dc:00", 45, 1818990, "python3"),
    ),
    # A link: no process.
    "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)": (
        "0019:01:00",
        149,
        None,
        "",
    ),
}


@pytest.mark.parametrize(("text", "expected"), LINES.items(), ids=[str(row[1]) + row[0][-5:] for row in LINES.values()])
def test_a_line_of_each_release(text: str, expected: tuple[str, int, int | None, str]) -> None:
    found = xid_line(f"4,1234,5678901,-;{text}", 7, 100.0)
    assert found is not None
    assert found == (7, 100.0, *expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "usb 1-1: new high-speed USB device",
        "NVRM: GPU at PCI:0000:08:00: GPU-UID",
        "NVRM: Xid (PCI:0000:01:00): , pid=1",
        "NVRM: Xid (PCI:<b>): 31, pid=1",
    ],
)
def test_other_lines_are_none(text: str) -> None:
    assert xid_line(text, 1, 0.0) is None


def record(text: str, number: int = 1) -> str:
    """As /dev/kmsg has it: priority, number, microseconds, flags; then lines of details."""
    return f"4,{number},5678901,-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:c1:00.0\n"


def test_only_what_is_written_after_the_start_counts(tmp_path: Path) -> None:
    first, second, *_ = LINES
    file = tmp_path / "kmsg"
    file.write_text(record(first))
    reader = KernelLogReader(file, lambda: 5.0)
    empty = reader.read()
    assert empty.lines == ()
    assert reader.read() is empty
    text = record(second, 2)
    with file.open("a") as log:
        # A write that is read in two parts.
        log.write(text[:30])
        log.flush()
        assert reader.read() is empty
        log.write(text[30:] + record("eth0: link up", 3))
        log.flush()
    assert [(line.number, line.code, line.pid) for line in reader.read().lines] == [(1, 79, 1122)]
    with file.open("a") as log:
        log.write("".join(record(second, number) for number in range(300)))
    assert len(reader.read().lines) == 100, "the newest"
    assert reader.read().lines[-1].number == 301


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    reader = KernelLogReader(path)
    assert reader.read().lines == ()
    writer = os.open(path, os.O_WRONLY)
    try:
        assert reader.read().lines == ()
        os.write(writer, record(next(iter(LINES))).encode())
        assert [line.code for line in reader.read().lines] == [31]
    finally:
        os.close(writer)


def test_without_the_right_to_read_it_is_absent_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SourceAbsent) as absent:
        KernelLogReader(tmp_path / "none").read()
    assert "does not name its process" in str(absent.value)


@pytest.mark.parametrize("error", [errno.EPERM, errno.EACCES])
def test_a_refused_log_names_the_capability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """Root is never refused: the kernel's answer to others stands in for it."""

    def refuse(*arguments: object) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SourceAbsent) as absent:
        KernelLogReader(tmp_path / "kmsg").read()
    assert "CAP_SYSLOG" in absent.value.remedy
