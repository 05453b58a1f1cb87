"""node_network_*: the counters of network devices, combined as in /proc/net/dev and node_exporter."""

from collections.abc import Callable, Iterator

from gpucommons.faces.exposition.families import Family, Metric, counter
from gpucommons.model.kernel import LinkCounters
from gpucommons.model.snapshot import Snapshot


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

CATALOGUE = tuple(metric for metric, _ in METRICS)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is not None and kernel.links is not None:
        links = [((name,), counters) for name, counters in kernel.links.items()]
        for metric, value in METRICS:
            yield metric.of((labels, value(counters)) for labels, counters in links)
