"""A machine made of files: /proc, /sys and a root with features that few machines have all of."""

from dataclasses import dataclass
from pathlib import Path

_PROC = {
    "loadavg": "0.61 1.20 0.99 3/512 4242\n",
    "stat": (
        "cpu  300 20 100 5000 40 5 6 7 8 9\n"
        "cpu0 100 10 50 2500 20 2 3 4 5 6\n"
        "cpu1 200 10 50 2500 20 3 3 3 3 3\n"
        "intr 98765 1 2 3 0 0 0\nctxt 123456\nbtime 1700000000\nprocesses 4321\nprocs_running 3\nprocs_blocked 1\n"
        "softirq 1 0 0 0 0 0 0 0 0 0 1\n"
    ),
    "meminfo": (
        "MemTotal:       16000000 kB\nMemFree:         4000000 kB\nMemAvailable:    9000000 kB\n"
        "Active(anon):     123456 kB\nInactive(file):       12 kB\nHugePages_Total:      7\nA_Field_Of_2050:  3 kB\n"
    ),
    "vmstat": (
        "nr_free_pages 5\npgpgin 11\npgpgout 12\npswpin 13\npswpout 14\npgfault 15\npgmajfault 16\noom_kill 17\n"
        "pgpgoutclean 18\npgscan_kswapd 19\npgmigrate_fault_x 20\n"
    ),
    "diskstats": (
        "   8       0 sda 7001 702 703003 70404 7501 706 707007 70808 3 71010 711011\n"
        "   8       1 sda1 1 2 3 4 5 6 7 8 9 10 11\n"
        " 259       0 nvme0n1 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15\n"
        " 259       1 nvme0n1p1 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15\n"
        " 253       0 dm-0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n"
        "   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0\n"
    ),
    "net/sockstat": (
        "sockets: used 310\nTCP: inuse 41 orphan 2 tw 5 alloc 47 mem 9\nUDP: inuse 8 mem 6\nUDPLITE: inuse 0\n"
        "RAW: inuse 0\nFRAG: inuse 0 memory 3\n"
    ),
    "net/stat/nf_conntrack": (
        "entries  searched found new invalid ignore delete delete_list insert insert_failed drop early_drop icmp_error"
        "  expect_new expect_create expect_delete search_restart\n"
        "00000021  00000000 0000000a 00000000 00000003 00000077 00000000 00000000 0000000f 00000001 00000002 00000004"
        " 00000000  00000000 00000000 00000000 00000005\n"
        "00000021  00000000 00000001 00000000 00000002 00000066 00000000 00000000 00000001 00000001 00000001 00000001"
        " 00000002  00000000 00000000 00000000 00000004\n"
    ),
    "net/netstat": (
        "TcpExt: SyncookiesSent SyncookiesRecv ListenOverflows ListenDrops TCPTimeouts EmbryonicRsts\n"
        "TcpExt: 11 12 13 14 15 16\n"
        "IpExt: InNoRoutes InOctets OutOctets\nIpExt: 17 18 19\n"
    ),
    "net/snmp": (
        "Ip: Forwarding DefaultTTL InReceives\nIp: 1 64 1000\n"
        "Tcp: RtoAlgorithm MaxConn ActiveOpens CurrEstab InSegs InErrs\nTcp: 1 -1 21 22 23 24\n"
        "UdpLite: InDatagrams InErrors\nUdpLite: 0 25\n"
    ),
    "net/snmp6": "Ip6InOctets                     \t31\nIcmp6InMsgs  32\nUdpLite6InErrors 33\nOdd 34\n",
    "net/softnet_stat": (
        "0000000d 00000001 00000002 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000\n"
        "000033c7 00000000 0000ffff 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000\n"
    ),
    "mdstat": (
        "Personalities : [raid1] [raid6] [raid5] [raid4] [raid0]\n"
        "md0 : active raid1 sda1[0] sdb1[1](F) sdc1[2](S)\n"
        "      248896 blocks [2/1] [U_]\n"
        "      \n"
        "md1 : active raid5 sda2[0] sdb2[1] sdc2[2]\n"
        "      1953382912 blocks super 1.2 level 5, 64k chunk, algorithm 2 [3/2] [UU_]\n"
        "      [=>...................]  recovery =  8.5% (16775552/195310144) finish=17.0min speed=259783K/sec\n"
        "      bitmap: 0/30 pages [0KB], 65536KB chunk\n"
        "\n"
        "md2 : active raid0 sdd1[0] sde1[1]\n"
        "      314159265 blocks 64k chunks\n"
        "      \n"
        "md3 : inactive sdf1[0](S)\n"
        "      7777 blocks super 1.2\n"
        "       \n"
        "md4 : active raid1 sdg1[0] sdh1[1]\n"
        "      2000 blocks super 1.2 [2/2] [UU]\n"
        "        resync=PENDING\n"
        "      \n"
        "md5 : active raid1 sdi1[0] sdj1[1]\n"
        "      4000 blocks super 1.2 [2/2] [UU]\n"
        "      [>....................]  check =  2.5% (100/4000) finish=1.0min speed=1K/sec\n"
        "      \n"
        "unused devices: <none>\n"
    ),
    "sys/net/netfilter/nf_conntrack_count": "33\n",
    "sys/net/netfilter/nf_conntrack_max": "65536\n",
    "sys/fs/file-nr": "2048\t0\t1000000\n",
    "pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=81234567\n",
    "pressure/io": (
        "some avg10=0.25 avg60=0.50 avg300=0.75 total=71234567\nfull avg10=0.20 avg60=0.40 avg300=0.60 total=61234567\n"
    ),
    "pressure/memory": (
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n"
    ),
}
_CORETEMP = {
    "name": "coretemp",
    "temp1_label": "Package id 0",
    "temp1_input": "54000",
    "temp1_max": "84000",
    "temp1_crit": "94000",
    "temp1_crit_alarm": "0",
    "temp2_label": "Core 0",
    "temp2_input": "51000",
}
_BOARD = {
    "name": "nct6798",
    "beep_enable": "1",
    "vrm": "120",
    "update_interval": "1000",
    "temp1_input": "31500",
    "temp1_type": "4",
    "temp1_alarm": "0",
    "temp1_fault": "1",
    "temp1_beep": "0",
    "temp1_offset": "-2000",
    "fan1_input": "1098",
    "fan1_min": "0",
    "fan1_alarm": "1",
    "fan1_pulses": "2",
    "in0_input": "896",
    "in0_max": "1744",
    "cpu0_vid": "1200",
    "pwm1": "153",
    "pwm1_mode": "1",
    "pwm1_enable": "5",
    "curr1_input": "1500",
    "energy1_input": "123456789",
    "humidity1_input": "54321",
    "intrusion0_alarm": "1",
    "power1_average": "345000000",
    "power1_average_interval": "1000",
    "power1_average_interval_max": "300000",
    "power1_cap": "0",
    "power1_accuracy": "90000",
    "power1_model_number": "not a number",
    "uevent": "",
}
_SDA = (
    "S:disk/by-id/ata-X\nW:1\nE:ID_ATA=1\nE:ID_ATA_ROTATION_RATE_RPM=7200\nE:ID_ATA_WRITE_CACHE=1\n"
    "E:ID_ATA_WRITE_CACHE_ENABLED=0\nE:ID_MODEL=DISK_OF_THE_TEST\nE:ID_PATH=pci-0000:01:00.0-ata-1\n"
    "E:ID_REVISION=R1\nE:ID_SERIAL_SHORT=SERIAL0001\nE:ID_WWN=0x5000c500deadbeef\nG:systemd\n"
)
_DM0 = (
    "E:DM_NAME=vault\nE:DM_UUID=CRYPT-LUKS2-0123456789abcdef-vault\nE:ID_FS_TYPE=ext4\n"
    "E:ID_FS_USAGE=filesystem\nE:ID_FS_UUID=a=b\nE:ID_FS_VERSION=1.0\nE:DM_VG_NAME=system\nE:DM_LV_NAME=root\n"
)


@dataclass(frozen=True)
class MadeMachine:
    procfs: Path
    sysfs: Path
    rootfs: Path

    @property
    def udev_data(self) -> Path:
        return self.rootfs / "run/udev/data"


def made_machine(directory: Path) -> MadeMachine:
    machine = MadeMachine(directory / "proc", directory / "sys", directory / "root")
    _write(machine.procfs, _PROC)
    # node_exporter asks the kernel for the domain name instead of reading /proc.
    _write(machine.procfs, {"sys/kernel/domainname": Path("/proc/sys/kernel/domainname").read_text()})
    _mounts(machine)
    _write(machine.udev_data, {"b8:0": _SDA, "b253:0": _DM0})
    _sensors(machine.sysfs)
    _cpus(machine.sysfs)
    _network(machine.sysfs)
    clock = {"available_clocksource": "tsc hpet acpi_pm \n", "current_clocksource": "tsc\n"}
    _write(machine.sysfs / "devices/system/clocksource/clocksource0", clock)
    return machine


def _mounts(machine: MadeMachine) -> None:
    root = machine.rootfs
    for name in ("", "data", "with space", "with\ttab", "proc", "var/lib/docker/overlay2/x"):
        (root / name).mkdir(parents=True, exist_ok=True)
    lines = [
        "/dev/sda1 / ext4 rw,relatime 0 0",
        "/dev/sda2 /data xfs ro,nosuid 0 0",
        r"/dev/sda3 /with\040space ext4 rw 0 0",
        r"/dev/sda4 /with\011tab ext4 rw 0 0",
        "/dev/sda5 /not/there ext4 rw 0 0",
        f"/dev/sda6 {root}/data ext4 rw 0 0",
        "proc /proc proc rw 0 0",
        "overlay /var/lib/docker/overlay2/x overlay rw 0 0",
        "tmpfs /data tmpfs rw 0 0",
        "tmpfs /data tmpfs rw 0 0",
    ]
    _write(machine.procfs, {"1/mounts": "\n".join(lines) + "\n"})


def _sensors(sysfs: Path) -> None:
    """One chip with a device elsewhere, one with sensors at the device, one without a device and a name."""
    _write(sysfs / "devices/platform/coretemp.0/hwmon/hwmon0", _CORETEMP)
    _write(sysfs / "devices/platform/nct6775.656", _BOARD)
    _write(sysfs / "devices/platform/nct6775.656/hwmon/hwmon1", {"name": "nct6798"})
    _write(sysfs / "devices/virtual/hwmon/hwmon2", {"temp1_input": "100", "temp1_label": 'a "label"\\'})
    _write(sysfs / "devices/virtual/hwmon/hwmon3", {"name": "Odd Name.7", "temp1": "3", "temp1_input": "100"})
    links = sysfs / "class/hwmon"
    links.mkdir(parents=True)
    for number, where in enumerate(
        (
            "platform/coretemp.0/hwmon/hwmon0",
            "platform/nct6775.656/hwmon/hwmon1",
            "virtual/hwmon/hwmon2",
            "virtual/hwmon/hwmon3",
        )
    ):
        directory = sysfs / "devices" / where
        (links / f"hwmon{number}").symlink_to(directory)
        if where.startswith("platform"):
            (directory / "device").symlink_to(directory.parents[1])


_ETH0 = {
    "addr_assign_type": "3\n",
    "address": "01:01:01:01:01:01\n",
    "broadcast": "ff:ff:ff:ff:ff:ff\n",
    "carrier": "1\n",
    "carrier_changes": "2\n",
    "carrier_down_count": "1\n",
    "carrier_up_count": "1\n",
    "dev_id": "0x20\n",
    "dormant": "0\n",
    "duplex": "full\n",
    "flags": "0x1303\n",
    "ifalias": 'up "link"\n',
    "ifindex": "2\n",
    "iflink": "2\n",
    "link_mode": "1\n",
    "mtu": "1500\n",
    "name_assign_type": "2\n",
    "netdev_group": "0\n",
    "operstate": "up\n",
    "speed": "25000\n",
    "tx_queue_len": "1000\n",
    "type": "1\n",
}


def _network(sysfs: Path) -> None:
    """A link that is up, one without most files and with an unknown speed, and a bond of two of which one is down."""
    root = sysfs / "class/net"
    _write(root / "eth0", _ETH0)
    _write(root / "eth1", {"operstate": "down\n", "speed": "-1\n", "ifindex": "3\n"})
    _write(root / "bond0", {"bonding/slaves": "eth0 eth1\n", "operstate": "up\n"})
    _write(root / "bond0", {"lower_eth0/bonding_slave/mii_status": "up\n"})
    _write(root / "bond0", {"slave_eth1/bonding_slave/mii_status": "down\n"})
    _write(root, {"bonding_masters": "bond0\n"})


def _cpus(sysfs: Path) -> None:
    """Two threads of one core, a second core, and a CPU that counts nothing."""
    root = sysfs / "devices/system/cpu"
    for number, (core, throttled) in enumerate((("0", "5"), ("0", "5"), ("1", "9"))):
        topology = {"topology/physical_package_id": "0\n", "topology/core_id": f"{core}\n"}
        counts = {
            "thermal_throttle/core_throttle_count": f"{throttled}\n",
            "thermal_throttle/package_throttle_count": "30\n",
        }
        _write(root / f"cpu{number}", topology | counts)
    _write(root / "cpu3", {"topology/physical_package_id": "1\n", "topology/core_id": "0\n"})
    _write(root, {"isolated": "1,3-5\n"})


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
