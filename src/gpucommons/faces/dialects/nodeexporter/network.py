"""The network: node_network_* (devices), node_netstat_* (protocols), node_softnet_* (packets per CPU), node_bonding_*.

The counters of devices are combined as in /proc/net/dev and node_exporter. The kernel names the fields of protocols.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from gpucommons.faces.exposition.families import Family, Metric, counter, gauge, untyped
from gpucommons.model.host import Bond, LinkCounters, NetworkDevice, SoftnetCounters
from gpucommons.model.snapshot import Snapshot

NETSTAT_PREFIX = "node_netstat_"
_BYTES_PER_MEGABIT = 125_000


def _metric(name: str, help: str) -> Metric:
    return counter(f"node_network_{name}_total", help, "device")


METRICS: tuple[tuple[Metric, Callable[[LinkCounters], int]], ...] = (
    (_metric("receive_bytes", "Bytes that a network device received."), lambda c: c.rx_bytes),
    (_metric("receive_packets", "Packets that a network device received."), lambda c: c.rx_packets),
    (_metric("receive_errs", "Packets received with an error."), lambda c: c.rx_errors),
    (
        _metric("receive_drop", "Received packets that were dropped, or missed because buffers were full."),
        lambda c: c.rx_dropped + c.rx_missed_errors,
    ),
    (_metric("receive_fifo", "Errors of the receive queue."), lambda c: c.rx_fifo_errors),
    (
        _metric("receive_frame", "Packets received with a wrong frame, length or checksum, or an overrun."),
        lambda c: c.rx_frame_errors + c.rx_length_errors + c.rx_over_errors + c.rx_crc_errors,
    ),
    (_metric("receive_compressed", "Compressed packets received."), lambda c: c.rx_compressed),
    (_metric("receive_multicast", "Multicast packets received."), lambda c: c.multicast),
    (_metric("receive_nohandler", "Received packets that no protocol handled."), lambda c: c.rx_nohandler),
    (_metric("transmit_bytes", "Bytes that a network device sent."), lambda c: c.tx_bytes),
    (_metric("transmit_packets", "Packets that a network device sent."), lambda c: c.tx_packets),
    (_metric("transmit_errs", "Packets that could not be sent."), lambda c: c.tx_errors),
    (_metric("transmit_drop", "Packets that were dropped instead of sent."), lambda c: c.tx_dropped),
    (_metric("transmit_fifo", "Errors of the send queue."), lambda c: c.tx_fifo_errors),
    (_metric("transmit_colls", "Collisions while sending."), lambda c: c.collisions),
    (
        _metric("transmit_carrier", "Packets lost because of a carrier, abort, heartbeat or window error."),
        lambda c: c.tx_carrier_errors + c.tx_aborted_errors + c.tx_heartbeat_errors + c.tx_window_errors,
    ),
    (_metric("transmit_compressed", "Compressed packets sent."), lambda c: c.tx_compressed),
)

UP = gauge("node_network_up", "State of a network device: 1 if its operstate is up, else 0.", "device")
INFO = gauge(
    "node_network_info",
    "Properties of a network device that are texts; always 1.",
    *("device", "address", "broadcast", "duplex", "operstate", "ifalias"),
)
SPEED = gauge("node_network_speed_bytes", "Speed of a network device in bytes per second.", "device")


def _property(name: str, help: str) -> Metric:
    return (counter if name.endswith("_total") else gauge)(f"node_network_{name}", help, "device")


# By the name of the file in /sys/class/net.
PROPERTIES = {
    "addr_assign_type": _property("address_assign_type", "Origin of a device's address, as a number of the kernel."),
    "carrier": _property("carrier", "Physical link of a device: 1 if it is up, else 0."),
    "carrier_changes": _property("carrier_changes_total", "Changes of a device's link."),
    "carrier_up_count": _property("carrier_up_changes_total", "Changes of a device's link to up."),
    "carrier_down_count": _property("carrier_down_changes_total", "Changes of a device's link to down."),
    "dev_id": _property("device_id", "Number that distinguishes devices with one hardware address."),
    "dormant": _property("dormant", "State of a device: 1 if it is dormant, else 0."),
    "flags": _property("flags", "Flags of a device, as a number of the kernel."),
    "ifindex": _property("iface_id", "Number of a device."),
    "iflink": _property("iface_link", "Number of the device that a device is linked to."),
    "link_mode": _property("iface_link_mode", "Link mode of a device, as a number of the kernel."),
    "mtu": _property("mtu_bytes", "Maximum size of a packet in bytes."),
    "name_assign_type": _property("name_assign_type", "Origin of a device's name, as a number of the kernel."),
    "netdev_group": _property("net_dev_group", "Group of a device."),
    "tx_queue_len": _property("transmit_queue_length", "Length of a device's send queue in packets."),
    "type": _property("protocol_type", "Hardware type of a device, as a number of the kernel."),
}

SOFTNET: tuple[tuple[Metric, Callable[[SoftnetCounters], int]], ...] = (
    (counter("node_softnet_processed_total", "Packets that a CPU processed.", "cpu"), lambda c: c.processed),
    (counter("node_softnet_dropped_total", "Packets that a CPU dropped.", "cpu"), lambda c: c.dropped),
    (
        counter("node_softnet_times_squeezed_total", "Times a CPU ran out of quota while packets waited.", "cpu"),
        lambda c: c.squeezed,
    ),
)

BONDING_SLAVES = gauge("node_bonding_slaves", "Devices configured in a bond.", "master")
BONDING_ACTIVE = gauge("node_bonding_active", "Devices of a bond whose link is up.", "master")


@cache
def protocol_metric(field: str) -> Metric:
    return untyped(
        NETSTAT_PREFIX + field, f"Value of {field.replace('_', ' ')} in the protocol statistics, since boot."
    )


# The fields that node_exporter takes by default from a kernel with IPv6.
_PROTOCOL_FIELDS = (
    *(f"Icmp{six}_{field}" for six in ("", "6") for field in ("InErrors", "InMsgs", "OutMsgs")),
    *(f"Ip{kind}_{field}" for kind in ("6", "Ext") for field in ("InOctets", "OutOctets")),
    "Ip_Forwarding",
    *(f"TcpExt_{field}" for field in ("ListenDrops", "ListenOverflows")),
    *(f"TcpExt_Syncookies{field}" for field in ("Failed", "Recv", "Sent")),
    *(f"TcpExt_{field}" for field in ("TCPSynRetrans", "TCPTimeouts")),
    *(f"Tcp_{field}" for field in ("ActiveOpens", "CurrEstab", "InErrs", "InSegs", "OutRsts", "OutSegs")),
    *(f"Tcp_{field}" for field in ("PassiveOpens", "RetransSegs")),
    *(f"Udp{six}_{field}" for six in ("", "6") for field in ("InDatagrams", "InErrors", "NoPorts", "OutDatagrams")),
    *(f"Udp{six}_{field}" for six in ("", "6") for field in ("RcvbufErrors", "SndbufErrors")),
    *(f"UdpLite{six}_InErrors" for six in ("", "6")),
)

CATALOGUE = (
    *(metric for metric, _ in METRICS),
    UP,
    INFO,
    *PROPERTIES.values(),
    SPEED,
    *map(protocol_metric, _PROTOCOL_FIELDS),
    *(metric for metric, _ in SOFTNET),
    BONDING_SLAVES,
    BONDING_ACTIVE,
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is None:
        return
    if kernel.links is not None:
        links = [((name,), counters) for name, counters in kernel.links.items()]
        for metric, value in METRICS:
            yield metric.of((labels, value(counters)) for labels, counters in links)
    if kernel.devices is not None:
        yield from _devices(kernel.devices)
    for field, number in (kernel.protocols or {}).items():
        yield protocol_metric(field).value(number)
    if kernel.softnet is not None:
        for metric, read in SOFTNET:
            yield metric.of(((str(cpu),), read(counters)) for cpu, counters in enumerate(kernel.softnet))
    if kernel.bonds is not None:
        yield from _bonds(kernel.bonds)


def _devices(devices: Mapping[str, NetworkDevice]) -> Iterator[Family]:
    yield UP.of(((name,), int(device.texts.get("operstate") == "up")) for name, device in devices.items())
    texts = ("address", "broadcast", "duplex", "operstate", "ifalias")
    yield INFO.of(((name, *(device.texts.get(text, "") for text in texts)), 1) for name, device in devices.items())
    for file, metric in PROPERTIES.items():
        yield metric.of(((name,), device.numbers[file]) for name, device in devices.items() if file in device.numbers)
    # The kernel's -1 for an unknown speed stays negative, as in node_exporter.
    yield SPEED.of(
        ((name,), device.numbers["speed"] * _BYTES_PER_MEGABIT)
        for name, device in devices.items()
        if "speed" in device.numbers
    )


def _bonds(bonds: Mapping[str, Bond]) -> Iterator[Family]:
    yield BONDING_SLAVES.of(((master,), bond.configured) for master, bond in bonds.items())
    yield BONDING_ACTIVE.of(((master,), bond.active) for master, bond in bonds.items())
