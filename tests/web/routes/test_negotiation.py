"""The format and encoding for each Accept and Accept-Encoding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.faces.web.routes.request import accepts_gzip, accepts_openmetrics, negotiate

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("application/*", False),
        ("text/plain", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0", True),
        ('application/openmetrics-text; version="1.0.0"', True),
        ("APPLICATION/OpenMetrics-Text", True),
        ("application/openmetrics-text; version=0.0.1", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.0,*/*", False),
        ("application/openmetrics-text,*/*", True),
        ("application/openmetrics-text;q=0.5,text/plain;q=0.5", True),
        ("application/openmetrics-text;q=0.4,text/plain;q=0.5", False),
        ("application/openmetrics-text;q=0.4,*/*;q=0.5", False),
        ("application/openmetrics-text;q=0.4,text/*;q=0.5,*/*;q=0.1", False),
        ("application/openmetrics-text;q=0.4,text/plain;q=0.1,*/*;q=0.9", True),
        ("application/openmetrics-text;q=nonsense", False),
        ("application/openmetrics-text;q=inf", False),
        (PROMETHEUS_2, True),
        (PROMETHEUS_3, True),
    ],
)
def test_openmetrics_only_if_named_with_the_quality_of_text(accept: str, openmetrics: bool) -> None:
    assert accepts_openmetrics(accept) is openmetrics


@pytest.mark.parametrize(
    ("accept_encoding", "gzip"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("gzip, deflate, br, zstd", True),
        ("deflate, br", False),
        ("identity", False),
        ("*", True),
        ("*;q=0", False),
        ("gzip;q=0", False),
        ("gzip;q=0.000, *", False),
        ("gzip;q=0.5, identity", False),
        ("gzip;q=1.0, identity;q=0.5, *;q=0", True),
        ("identity;q=0, gzip;q=0.1", True),
        ("gzip;q=-1", False),
    ],
)
def test_gzip_only_if_allowed_with_the_quality_of_identity(accept_encoding: str, gzip: bool) -> None:
    assert accepts_gzip(accept_encoding) is gzip


HEADER = st.text() | st.lists(
    st.sampled_from(["text/plain", "*/*", "gzip", "*", ";", ",", "=", "q=", "q=0.5", "0.", "version=", '"', " "])
).map("".join)


@given(HEADER, HEADER)
def test_no_header_is_an_error(accept: str, accept_encoding: str) -> None:
    choice = negotiate(accept, accept_encoding)
    assert "openmetrics-text" in accept.lower() or not choice.openmetrics
    assert any(name in accept_encoding.lower() for name in ("gzip", "*")) or not choice.gzip
