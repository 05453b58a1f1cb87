"""Checks that the ports of the stack are free, and names the process that uses one that is not."""

import errno
import os
import socket
from collections.abc import Callable, Mapping

from gpucommons.base.address import Address, parse_address
from gpucommons.stack.errors import StackError

PortOwner = Callable[[int], str | None]


def split_address(address: str) -> tuple[str, int]:
    parsed = parse_address(address)
    if not isinstance(parsed, Address):
        raise StackError(f"cannot listen on {address}: the stack listens on TCP only; use HOST:PORT")
    return parsed.host or "0.0.0.0", parsed.port


def require_free_ports(addresses: Mapping[str, str], owner: PortOwner) -> None:
    """`addresses` are HOST:PORT by service. The error names every port that is in use and its process."""
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
            taken.append(
                f"{service}: cannot listen on {address}: {os.strerror(reason)};"
                f" set stack.{service}_listen to an address of this machine"
            )
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
