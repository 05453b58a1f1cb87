"""HOST:PORT in all its spellings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.base.address import Address, AddressError, UnixAddress, parse_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9460", "127.0.0.1", 9460),
        ("[::1]:9460", "::1", 9460),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
        (":9100", "", 9100),
        ("localhost:0", "localhost", 0),
    ],
)
def test_good(text: str, host: str, port: int) -> None:
    address = parse_address(text)
    assert address == Address(host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "9460", "host", "host:", "host:http", "host:65536", "::1:9460", "h:-1", "h:²", "a b:1", "a\nb:1"]
)
def test_bad_is_one_line(text: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_address(text)
    assert "\n" not in str(caught.value)


@given(st.text())
def test_any_text_is_an_address_or_an_address_error(text: str) -> None:
    try:
        address = parse_address(text)
    except AddressError:
        return
    assert isinstance(address, UnixAddress) or 0 <= address.port <= 65535
