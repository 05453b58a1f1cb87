"""The heads of requests: the same however the bytes arrive, limited, and never from a remembered password."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.faces.web.http.request_head import MAX_FIELDS, MAX_HEAD_BYTES, HeadParser, RequestError, RequestHead

FIELD_BYTES = 8192
HOST = b"Host: localhost\r\n"
PLAIN = b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n"
REQUESTS = (
    PLAIN,
    b"\r\n\r\nGET /metrics/%6eode?a=b&c=&d HTTP/1.1\r\nHOST: node:9460\r\nAccept: a\r\naccept: b\r\n\r\n",
    b'HEAD / HTTP/1.0\r\nX-Empty:\r\nConnection: keep-alive\r\nIf-None-Match: "x"\r\n\r\n',
    b"GET /metrics HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\n" + HOST + b"Accept-Encoding: gzip\r\n\r\n",
)


def parser(known: dict[bytes, RequestHead] | None = None) -> HeadParser:
    return HeadParser(FIELD_BYTES, {} if known is None else known)


def heads(data: bytes, cuts: list[int] | None = None) -> list[RequestHead]:
    found, parsing = [], parser()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts or ()), len(data)]
    for start, end in pairwise(edges):
        parsing.feed(data[start:end])
        while (head := parsing.next_head()) is not None:
            found.append(head)
    parsing.release()
    return found


def error_of(data: bytes) -> RequestError:
    with pytest.raises(RequestError) as raised:
        heads(data)
    return raised.value


@given(st.lists(st.sampled_from(REQUESTS), max_size=6), st.lists(st.integers(0, 2000), max_size=12))
def test_heads_are_the_same_however_the_bytes_arrive(requests: list[bytes], cuts: list[int]) -> None:
    alone = [head for request in requests for head in heads(request)]
    assert len(alone) == len(requests)
    assert heads(b"".join(requests), cuts) == alone


def test_the_end_of_a_head_may_come_in_two_parts() -> None:
    data = PLAIN + REQUESTS[2]
    for cut in range(len(data)):
        assert len(heads(data, [cut])) == 2, data[:cut]


def test_the_parts_of_a_head() -> None:
    first, second, third = (heads(request)[0] for request in REQUESTS[:3])
    assert (first.method, first.path, first.query, first.host) == ("GET", "/metrics", (), "localhost")
    assert (first.is_http_1_0, first.keeps_alive, first.has_body) == (False, True, False)
    assert (second.path, second.query) == ("/metrics/node", (("a", "b"), ("c", ""), ("d", "")))
    assert (second.host, second.accept) == ("node:9460", "a,b")
    assert (third.method, third.host, third.if_none_match) == ("HEAD", None, '"x"')
    assert (third.is_http_1_0, third.keeps_alive) == (True, True)


@pytest.mark.parametrize(
    ("fields", "has_body"),
    [
        (b"", False),
        (b"Content-Length: 0\r\n", False),
        (b"Content-Length: 000\r\n", False),
        (b"Content-Length: 10\r\n", True),
        (b"Transfer-Encoding: chunked\r\n", True),
        # An upgrade ends the message for llhttp, which then takes the body for a request.
        (b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 10\r\n", True),
    ],
)
def test_whether_a_body_follows(fields: bytes, has_body: bool) -> None:
    assert heads(b"POST / HTTP/1.1\r\n" + HOST + fields + b"\r\n")[0].has_body is has_body


@pytest.mark.parametrize(
    "target",
    [b"http://[::1", b"/" + b"a" * FIELD_BYTES, b"/\xff", b"/a b"],
    ids=["no URL", "long", "not ASCII", "space"],
)
def test_a_target_that_is_refused(target: bytes) -> None:
    assert error_of(b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n").status == 400


def test_a_request_names_one_host() -> None:
    assert "no Host" in error_of(b"GET / HTTP/1.1\r\n\r\n").line
    assert "two Host" in error_of(b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n").line


@pytest.mark.parametrize("line", [b"GET / HTTP/2.0", b"GET / HTTP/0.9", b"GET /"])
def test_other_versions_are_not_supported(line: bytes) -> None:
    assert error_of(line + b"\r\n" + HOST + b"\r\n").status == 505


def test_fields_are_limited_in_length_and_number_and_the_head_in_all() -> None:
    begin = b"GET / HTTP/1.1\r\n" + HOST
    longest = b"X: " + b"a" * FIELD_BYTES + b"\r\n"
    assert heads(begin + longest + b"X: y\r\n" * (MAX_FIELDS - 2) + b"\r\n")
    assert "field" in error_of(begin + b"X: a" + longest[3:] + b"\r\n").line
    assert "fields" in error_of(begin + b"X: y\r\n" * MAX_FIELDS + b"\r\n").line
    assert "bytes" in error_of(begin + longest * (MAX_HEAD_BYTES // FIELD_BYTES) + b"\r\n").line


def test_a_head_without_an_end_takes_limited_memory() -> None:
    parsing = parser()
    parsing.feed(b"GET / HTTP/1.1\r\nX: ")
    for _ in range(MAX_HEAD_BYTES // 1024):
        assert parsing.next_head() is None
        parsing.feed(b"a" * 1024)
    with pytest.raises(RequestError):
        parsing.next_head()
    parsing.release()


def test_a_head_is_remembered_unless_it_has_a_password() -> None:
    known: dict[bytes, RequestHead] = {}
    secret = b"GET /metrics HTTP/1.1\r\n" + HOST + b"Authorization: Basic c2VjcmV0\r\n\r\n"
    for data in (PLAIN, secret, PLAIN + PLAIN, PLAIN[:20]):
        parsing = parser(known)
        parsing.feed(data)
        parsing.next_head()
        parsing.release()
    assert list(known) == [PLAIN]
    # Not as the second part of another head.
    parsing = parser(known)
    parsing.feed(b"GET /a HTTP/1.1\r\nX: ")
    assert parsing.next_head() is None
    parsing.feed(PLAIN)
    head = parsing.next_head()
    assert head is not None
    assert head.path == "/a"
    parsing.release()


def test_remembered_heads_are_limited() -> None:
    known: dict[bytes, RequestHead] = {}
    for number in range(1000):
        parsing = parser(known)
        parsing.feed(b"GET /%d HTTP/1.1\r\n" % number + HOST + b"X: " + b"a" * number * 4 + b"\r\n\r\n")
        assert parsing.next_head() is not None
        parsing.release()
    assert len(known) <= 64
    assert max(map(len, known), default=0) <= 2048
