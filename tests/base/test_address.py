"""Addresses: HOST:PORT and unix:PATH in every spelling."""

import contextlib
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.base.address import (
    Address,
    AddressError,
    UnixAddress,
    parse_address,
    parse_address_or_port,
    parse_remote_address,
    parse_tcp_address,
)
from unhurried import unhurried


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9460", "127.0.0.1", 9460),
        ("[::1]:9460", "::1", 9460),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
        (":9100", "", 9100),
        ("localhost:0", "localhost", 0),
        ("gpu_1.lab.example.:80", "gpu_1.lab.example.", 80),
        ("münchen.example:80", "münchen.example", 80),
    ],
)
def test_a_valid_address(text: str, host: str, port: int) -> None:
    address = parse_address(text)
    assert address == Address(host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no colon between host and port"),
        ("9460", "no colon between host and port"),
        ("host", "no colon between host and port"),
        ("host:", "'' is not a port"),
        ("host:http", "'http' is not a port"),
        ("host:65536", "'65536' is not a port"),
        ("host:80 ", "'80 ' is not a port"),
        ("h:-1", "'-1' is not a port"),
        ("h:²", "'²' is not a port"),
        ("::1:9460", "brackets"),
        ("[::1:80", "not a host name"),
        ("[]:80", "'' is not an IPv6 address"),
        ("[localhost]:80", "'localhost' is not an IPv6 address"),
        ("a b:80", "'a b' is not a host name"),
        (" a:80", "' a' is not a host name"),
        ("a\nb:1", "'a\\nb' is not a host name"),
        ("a\0b:1", "not a host name"),
        ("a..b:1", "not a host name"),
        (f"{'x' * 64}:1", "not a host name"),
        ("http://a:1", "not a host name"),
        ("unix:", "not an absolute path"),
        ("unix:x.sock", "not an absolute path"),
        ("unix:/a\nb", "control character"),
        ("unix:/" + "x" * 107, "longer than 107 bytes"),
    ],
)
def test_an_error_is_one_line_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_address(text)
    message = str(caught.value)
    assert why in message
    assert repr(text) in message
    assert "; use " in message
    assert "\n" not in message


def test_a_port_alone_is_every_ipv4_interface() -> None:
    assert parse_address_or_port("9402") == Address("0.0.0.0", 9402)
    assert parse_address_or_port("[::1]:9402") == Address("::1", 9402)
    with pytest.raises(AddressError):
        parse_address_or_port("70000")


@pytest.mark.parametrize("text", ["unix:/run/x.sock", "a b:1"])
def test_a_tcp_address_is_not_a_path(text: str) -> None:
    with pytest.raises(AddressError):
        parse_tcp_address(text)


@pytest.mark.parametrize("text", [":25", "mail:0"])
def test_a_server_has_a_host_and_a_port(text: str) -> None:
    with pytest.raises(AddressError):
        parse_remote_address(text)


texts = st.one_of(st.text(), st.builds("{}:{}".format, st.text(), st.integers(0, 65535)))


@given(texts)
@unhurried(100)
def test_a_parsed_address_can_be_given_to_the_operating_system(text: str) -> None:
    """A name that does not resolve is an OSError, which the listeners report. Nothing else may be raised."""
    with contextlib.suppress(AddressError):
        address = parse_address(text)
        if isinstance(address, UnixAddress):
            assert len(address.path.encode()) <= 107
        else:
            with contextlib.suppress(OSError):
                socket.getaddrinfo(address.host, address.port, flags=socket.AI_NUMERICHOST)
