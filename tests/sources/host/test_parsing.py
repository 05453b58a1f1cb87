"""Parsers of /proc, /sys, udev and netlink. Equality with node_exporter is tested against the real program."""

import re
import socket
import struct
import sys
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.model.host import CoreTimes, LinkCounters
from gpucommons.sources.host.cpu import CpuReader, parse_activity, parse_core_times, without_steps_back
from gpucommons.sources.host.filesystems import FilesystemReader, parse_mounts
from gpucommons.sources.host.hardware import HardwareReader, parse_cpu_list, sensor_file
from gpucommons.sources.host.kernel import (
    KernelReader,
    UdevProperties,
    messages,
    parse_diskstats,
    parse_link,
    parse_raids,
    parse_statistics,
    read_links,
)
from gpucommons.sources.host.network import ProtocolReader, parse_softnet, read_bonds, read_devices
from gpucommons.sources.host.procfs import read_file, read_whole
from gpucommons.sources.source import SourceAbsent

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")


def core(idle: float, user: float = 0.0) -> CoreTimes:
    return CoreTimes(user, 0, 0, idle, 0, 0, 0, 0, 0, 0)


def test_the_times_of_a_core() -> None:
    lines = [
        b"cpu  1 1 1 1",
        b"cpu0 100 200 300 400 500 600 700 800 900 1000 9",
        b"cpu12 1 2 3 4",
        b"cpufreq 1",
        b"intr 5",
    ]
    found = parse_core_times(lines)
    assert found["0"] == CoreTimes(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    assert found["12"] == CoreTimes(0.01, 0.02, 0.03, 0.04, 0, 0, 0, 0, 0, 0), "an older kernel has fewer modes"
    assert found.keys() == {"0", "12"}


def test_a_counter_does_not_go_back_unless_the_cpu_has_restarted() -> None:
    before = {"0": core(100.0, user=50.0), "1": core(100.0, user=50.0)}
    now = {"0": core(99.0, user=60.0), "1": core(3.0, user=1.0), "2": core(1.0)}
    kept = without_steps_back(before, now)
    assert kept == {"0": core(100.0, user=60.0), "1": core(3.0, user=1.0), "2": core(1.0)}


@given(st.lists(st.tuples(st.floats(97.1, 100), st.floats(0, 1e6)), min_size=1, max_size=8))
def test_a_counter_never_goes_back_by_less_than_a_restart(reads: list[tuple[float, float]]) -> None:
    kept: dict[str, CoreTimes] = {}
    for idle, user in reads:
        later = without_steps_back(kept, {"0": core(idle, user)})
        assert not kept or all(new >= old for new, old in zip(later["0"], kept["0"], strict=True))
        kept = later


def test_the_cpu_reader_keeps_its_counters(tmp_path: Path) -> None:
    source = CpuReader(tmp_path)
    for ticks in (1000, 990):
        (tmp_path / "stat").write_text(f"cpu 1 1 1 1 1\ncpu0 1 1 1 {ticks} 1\nctxt 7\n")
        reading = source.read()
    assert reading.core_times["0"].idle == 10.0
    assert reading.activity is not None
    assert (reading.activity.context_switches, reading.activity.forks) == (7, None)


def test_interrupts_are_the_sum() -> None:
    assert parse_activity([b"intr 700 1 2 3", b"btime 5", b"softirq 1"]).interrupts == 700


def mounts(text: str, rootfs: str = "/") -> list[tuple[str, str]]:
    return [(mount.mount_point, mount.path) for mount in parse_mounts(text.encode(), PurePosixPath(rootfs))]


def test_a_mount_has_node_exporters_label_and_its_real_path() -> None:
    assert mounts(r"d /a\040b\011c t rw 0 0") == [("/a b\tc", "/a b\tc")]
    assert mounts(r"d /a\134b\043c\012d t rw 0 0") == [(r"/a\134b\043c\012d", "/a\\b#c\nd")]
    assert mounts("d /a\x85\u2028b t rw 0 0") == [("/a\x85\u2028b", "/a\x85\u2028b")], "only the kernel ends a line"
    assert [m.read_only for m in parse_mounts(b"d /a t rw,rootro 0 0\nd /b t noexec,ro 0 0\n", PurePosixPath("/"))] == [
        False,
        True,
    ]


def test_a_mount_below_the_root_of_the_host_loses_its_prefix() -> None:
    text = "d /host t rw 0 0\nd /host/data t rw 0 0\nd /hostage t rw 0 0\n"
    assert [name for name, _ in mounts(text, "/host")] == ["/", "/data", "/hostage"]
    assert [name for name, _ in mounts(text)] == ["/host", "/host/data", "/hostage"]


def test_duplicate_mounts_are_left_out() -> None:
    assert len(mounts("d /a t rw 0 0\nd /a t ro 0 0\ne /a t rw 0 0\n")) == 2


def test_disks_of_every_kernel() -> None:
    text = b"  8 0 sda 1 2 3\n 8 1 sda1 1 2 3\n 259 0 nvme0n1 1 2 3 4\n"
    found = list(parse_diskstats(text, re.compile(r"^sd[a-z]\d+$")))
    assert [(disk.name, disk.major, disk.minor, disk.counters) for disk in found] == [
        ("sda", 8, 0, (1, 2, 3)),
        ("nvme0n1", 259, 0, (1, 2, 3, 4)),
    ]


def test_udev_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    udev = UdevProperties(tmp_path)
    file = tmp_path / "b8:0"
    file.write_text("S:x\nE:ID_MODEL=one=two\nE:broken\n")
    assert udev.read([(8, 0), (8, 1)]) == {(8, 0): {"ID_MODEL": "one=two"}, (8, 1): {}}
    first = udev.read([(8, 0)])[8, 0]
    assert udev.read([(8, 0)])[8, 0] is first, "unchanged: not read again"
    file.unlink()
    file.write_text("E:ID_MODEL=three\n")
    assert udev.read([(8, 0)])[8, 0] == {"ID_MODEL": "three"}


def test_conntrack_by_the_names_of_the_columns() -> None:
    text = b"entries found search_restart\n00000001 0000000a 00000002\n00000001 00000001 00000001\n"
    assert parse_statistics(text) == {"found": 11, "search_restart": 3}


@pytest.mark.parametrize(
    ("text", "cpus"), [(b"\n", ()), (b"3\n", (3,)), (b"1,3-5\n", (1, 3, 4, 5)), (b"0-1,7", (0, 1, 7))]
)
def test_cpu_lists(text: bytes, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize(
    ("file", "parts"),
    [
        ("temp1_input", ("temp1", "temp", "input")),
        ("power1_average_interval", ("power1", "power", "average_interval")),
        ("beep_enable", ("beep_enable0", "beep_enable", "")),
        ("pwm2", ("pwm2", "pwm", "")),
        ("name", None),
        ("temp_input", None),
        ("1temp", None),
    ],
)
def test_the_names_of_sensor_files(file: str, parts: tuple[str, str, str] | None) -> None:
    assert sensor_file(file) == parts


def attribute(kind: int, value: bytes) -> bytes:
    padded = value + bytes(-len(value) % 4)
    return struct.pack("=HH", 4 + len(value), kind) + padded


def test_a_link_of_an_older_and_of_a_newer_kernel() -> None:
    for words in (23, 24, 30):
        body = (
            bytes(16)
            + attribute(3, b"eth0\0")
            + attribute(1, b"x")
            + attribute(23, struct.pack(f"={words}Q", *range(words)))
        )
        name, counters = parse_link(body) or ("", None)
        assert name == "eth0"
        assert counters == LinkCounters._make([*range(23), 23 if words > 23 else 0])
    assert parse_link(bytes(16) + attribute(3, b"eth0\0")) is None, "a device without counters"


@given(st.binary(max_size=200))
def test_no_datagram_hangs_or_breaks_the_parser(data: bytes) -> None:
    try:
        bodies = [body for _, body in messages(data)]
    except ValueError:
        return
    for body in bodies:
        parse_link(body)


@linux
def test_the_links_of_this_machine() -> None:
    found = read_links(None)
    assert found.keys() == {name for _, name in socket.if_nameindex()}
    assert "lo" not in read_links(re.compile("^lo$"))


@linux
def test_a_file_longer_than_a_page_is_read_whole() -> None:
    """One read of /proc/self/maps returns a page, like one of a long mount table."""
    whole, once = read_whole(Path("/proc"), "self/maps"), read_file(Path("/proc"), "self/maps")
    assert len(whole) > len(once)
    assert whole.endswith(b"\n")


def kernel(root: Path) -> KernelReader:
    return KernelReader(root, root, root, disks_exclude="", links_exclude="")


@linux
def test_a_part_that_fails_does_not_affect_the_others(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("pgfault 5\n")
    (tmp_path / "diskstats").write_text("garbage\n")
    reading = kernel(tmp_path).read()
    assert reading.vmstat == {"pgfault": 5}
    assert (reading.disks, reading.conntrack) == (None, None)
    assert not reading.runs["vmstat"].error
    assert reading.runs["disks"].error
    assert "No such file" in reading.runs["conntrack"].error


def test_missing_proc_and_sys_are_absent_with_a_remedy(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    with pytest.raises(SourceAbsent, match="no mount table") as mounts_absent:
        FilesystemReader(nowhere, nowhere, mount_points_exclude="", types_exclude="").read()
    assert "--path.procfs" in mounts_absent.value.remedy
    with pytest.raises(SourceAbsent, match="no hardware") as sys_absent:
        HardwareReader(nowhere).read()
    assert "sysfs" in sys_absent.value.remedy


def test_our_own_mounts_are_read_if_the_first_process_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(f"d {tmp_path} t rw 0 0\n")
    source = FilesystemReader(tmp_path, Path("/"), mount_points_exclude="", types_exclude="")
    assert [found.mount_point for found in source.read().filesystems] == [str(tmp_path)]
    assert source.read().filesystems[0].space is not None


def test_a_machine_without_sensors(tmp_path: Path) -> None:
    reading = HardwareReader(tmp_path).read()
    assert reading.chips is None
    assert not reading.throttles.cores


ALL_PROTOCOLS = ProtocolReader(Path("/proc"), re.compile(""))


def test_protocol_counters_come_in_pairs_of_lines() -> None:
    text = b"Tcp: RtoMax MaxConn InSegs\nTcp: 120000 -1 7\nUdp: InErrors\nUdp: 3\n"
    assert dict(ALL_PROTOCOLS.parse(text)) == {
        "Tcp_RtoMax": 120000,
        "Tcp_MaxConn": -1,
        "Tcp_InSegs": 7,
        "Udp_InErrors": 3,
    }
    assert dict(ALL_PROTOCOLS.parse_v6(b"Ip6InOctets 5\nUdpLite6InErrors\t6\nOther 7\n")) == {
        "Ip6_InOctets": 5,
        "UdpLite6_InErrors": 6,
    }


def test_only_protocol_counters_that_fit_the_pattern_are_kept() -> None:
    reader = ProtocolReader(Path("/proc"), re.compile("^(Tcp_InSegs|Ip6_InOctets)$"))
    for segments in (7, 9):
        text = f"Tcp: RtoMax InSegs\nTcp: 120000 {segments}\nUdp: InErrors\nUdp: 3\n".encode()
        assert dict(reader.parse(text)) == {"Tcp_InSegs": segments}
        assert dict(reader.parse_v6(b"Ip6InOctets %d\nIp6OutOctets 8\n" % segments)) == {"Ip6_InOctets": segments}
    # A kernel update within a container's life, or another format, is not read with the old places.
    assert dict(reader.parse(b"Tcp: InSegs RtoMax\nTcp: 5 120000\n")) == {"Tcp_InSegs": 5}


@pytest.mark.parametrize(
    "text", [b"Tcp: InSegs\n", b"Tcp: InSegs\nTcp: 1 2\n", b"Tcp: InSegs\nUdp: 1\n", b"Tcp: A\nTcp: x\n"]
)
def test_protocol_counters_that_do_not_fit_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        dict(ALL_PROTOCOLS.parse(text))


def test_packets_of_each_cpu_are_hexadecimal() -> None:
    assert parse_softnet(b"0000000a 00000001 000000ff 0\n00000002 0 0\n") == ((10, 1, 255), (2, 0, 0))
    with pytest.raises(ValueError, match="unpack"):
        parse_softnet(b"0000000a 00000001\n")


def test_a_file_of_a_device_that_is_not_a_number_is_left_out(tmp_path: Path) -> None:
    device = tmp_path / "class/net/eth0"
    device.mkdir(parents=True)
    (device / "mtu").write_text("wide\n")
    (device / "flags").write_text("0x1003\n")
    (device / "operstate").write_bytes(b"\xff\n")
    (tmp_path / "class/net/bonding_masters").write_text("bond0\n")
    found = read_devices(tmp_path, None)
    assert found.keys() == {"eth0"}, "a file in the directory is not a device"
    assert found["eth0"].numbers == {"flags": 0x1003}
    assert read_devices(tmp_path, re.compile("eth")) == {}
    with pytest.raises(FileNotFoundError):
        read_bonds(tmp_path)


@pytest.mark.parametrize(
    "text", ["md0 : active raid1 a[0]\n      12 blocks\n", "md0 : active raid1\n      many blocks [2/2]\n"]
)
def test_a_raid_of_an_unknown_format_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        list(parse_raids(text))


def test_no_raid_is_no_error() -> None:
    assert list(parse_raids("Personalities : \nunused devices: <none>\n")) == []
    assert list(parse_raids("")) == []
