"""Whether the stack's ports are free, and who holds one that is not."""

import errno
import socket
from collections.abc import Callable, Mapping

from gpucommons.stack.errors import StackError

PortOwner = Callable[[int], str | None]


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]") or "0.0.0.0", int(port)


def demand_free(addresses: Mapping[str, str], owner: PortOwner) -> None:
    """`addresses` are HOST:PORT by service. Raises naming every port that is taken, and by whom."""
    taken = []
    for service, address in addresses.items():
        host, port = split_address(address)
        reason = _refusal(host, port)
        if reason is None:
            continue
        if reason == errno.EADDRINUSE:
            holder = owner(port) or "another process"
            taken.append(
                f"{service}: {address} is in use by {holder}; stop it, or set stack.{service}_listen to another port"
            )
        else:
            taken.append(f"{service}: cannot listen on {address}: {errno.errorcode.get(reason, reason)}")
    if taken:
        raise StackError("\n".join(taken))


def _refusal(host: str, port: int) -> int | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno
    return None
