"""Addresses of nodes' pages: made of hosts only, whatever the labels are. Addresses of jobs, whatever their names."""

from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.base.address import check_job_url, check_page_url, host_of, job_address, page_address


@pytest.mark.parametrize(
    ("pattern", "instance", "node", "address"),
    [
        ("http://{instance}/", "gpu1:9460", "gpu1", "http://gpu1:9460/"),
        ("http://{host}:9460/", "gpu1:9100", "gpu1", "http://gpu1:9460/"),
        ("https://gpus.example.org/{node}/", "10.0.0.1:9460", "gpu1", "https://gpus.example.org/gpu1/"),
        ("http://{instance}/", "[fe80::1]:9460", "x", "http://[fe80::1]:9460/"),
        ("http://{host}:9460/", "gpu1", "gpu1", "http://gpu1:9460/"),
        ("http://{instance}/", "evil/path", "x", None),
        ("http://{instance}/", "user@evil:80", "x", None),
        ("http://{instance}/", 'a"onclick=', "x", None),
        ("http://{instance}/", "", "x", None),
        ("http://gpus/{node}/", "ok:1", "<script>", None),
    ],
)
def test_an_address_is_made_of_labels_that_are_hosts(
    pattern: str, instance: str, node: str, address: str | None
) -> None:
    assert page_address(pattern, instance, node) == address


@given(st.text(max_size=30))
def test_no_label_changes_anything_but_the_host(label: str) -> None:
    found = page_address("http://{host}:9460/page", label, label)
    if found is not None:
        parts = urlsplit(found)
        assert (parts.scheme, parts.port, parts.path, parts.username) == ("http", 9460, "/page", None)
        assert not parts.query
        assert not parts.fragment
        assert f"{host_of(label)}:9460" == parts.netloc


@pytest.mark.parametrize("pattern", ["http://{instance}/", "https://{host}:9460/", "http://gpus/{node}?show=free"])
def test_a_valid_pattern(pattern: str) -> None:
    check_page_url(pattern)


@pytest.mark.parametrize(
    "pattern", ["javascript:alert(1)", "ftp://{host}/", "http://", "http://{user}/", "http://{host", "http://a b/"]
)
def test_an_invalid_pattern_is_one_line(pattern: str) -> None:
    with pytest.raises(ValueError, match="use http:// or https://"):
        check_page_url(pattern)


GRAFANA = "https://grafana.example.org/d/usage?var-job={job}&from={from_ms}&to={to_ms}"


@given(st.text(min_size=1, max_size=30))
def test_the_name_of_a_job_changes_one_parameter_of_its_address(name: str) -> None:
    address = job_address(GRAFANA, name, 1_700_000_000, 1_700_000_060)
    assert address is not None
    parts = urlsplit(address)
    assert (parts.scheme, parts.netloc, parts.path, parts.fragment) == ("https", "grafana.example.org", "/d/usage", "")
    assert parse_qs(parts.query, keep_blank_values=True) == {
        "var-job": [name],
        "from": ["1700000000000"],
        "to": ["1700000060000"],
    }


def test_a_job_without_times_has_an_address_that_needs_none() -> None:
    assert job_address(GRAFANA, "4711", None, None) is None
    assert job_address("http://jobs/{job}", "research/train-0", None, None) == "http://jobs/research%2Ftrain-0"
    assert job_address("", "4711", 1, 2) is None


def test_patterns_of_jobs() -> None:
    for pattern in ("", GRAFANA, "http://jobs/"):
        check_job_url(pattern)
    for pattern in ("javascript:alert({job})", "http://{host}/", "http://jobs/{job"):
        with pytest.raises(ValueError, match=r"use http:// or https:// with \{job\}"):
            check_job_url(pattern)
