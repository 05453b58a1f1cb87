"""The counters of network devices by netlink: one request for all of them.

/proc/net/dev has the same counters except for packets without a handler.
"""

import re
import socket
import struct
from collections.abc import Iterator

from gpucommons.model.host import LinkCounters

_ANSWER_WITHIN_S = 1.0
_MOST_BYTES = 1 << 16
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_LINK_HEADER_BYTES = 16
_COUNTERS = struct.Struct(f"={len(LinkCounters._fields)}Q")
# From linux/rtnetlink.h and linux/if_link.h.
_ERROR, _DONE, _NEW_LINK, _GET_LINK = 2, 3, 16, 18
_REQUEST_DUMP = 0x301
_IFLA_IFNAME, _IFLA_STATS64 = 3, 23
_TYPE_MASK = 0x3FFF


def read_links(exclude: re.Pattern[str] | None) -> dict[str, LinkCounters]:
    """Counters by name of the device, in this process's network namespace."""
    links = dict(_dump())
    return {name: counters for name, counters in links.items() if exclude is None or not exclude.search(name)}


def _dump() -> Iterator[tuple[str, LinkCounters]]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_ANSWER_WITHIN_S)
        request = bytes(_LINK_HEADER_BYTES)
        kernel.send(_HEADER.pack(_HEADER.size + len(request), _GET_LINK, _REQUEST_DUMP, 1, 0) + request)
        while True:
            for kind, body in messages(kernel.recv(_MOST_BYTES)):
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    raise OSError(code, "netlink refused to list the network devices")
                if kind == _NEW_LINK and (link := parse_link(body)) is not None:
                    yield link


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, body) of each netlink message in one datagram."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            raise ValueError("netlink message with an impossible length")
        yield kind, data[at + _HEADER.size : at + length]
        at += _aligned(length)


def parse_link(body: bytes) -> tuple[str, LinkCounters] | None:
    """None for a device without counters."""
    name, counters, at = "", None, _LINK_HEADER_BYTES
    while at + _ATTRIBUTE.size <= len(body) and not (name and counters):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size:
            break
        value = body[at + _ATTRIBUTE.size : at + length]
        if kind & _TYPE_MASK == _IFLA_IFNAME:
            name = value.rstrip(b"\0").decode("utf-8", "surrogateescape")
        elif kind & _TYPE_MASK == _IFLA_STATS64:
            # A kernel before 4.6 has fewer counters, a newer one may have more.
            counters = LinkCounters(*_COUNTERS.unpack(value[: _COUNTERS.size].ljust(_COUNTERS.size, b"\0")))
        at += _aligned(length)
    return (name, counters) if name and counters is not None else None


def _aligned(length: int) -> int:
    return (length + 3) & ~3
