"""The API server that Kubernetes announces to a pod, and the errors without it."""

from pathlib import Path

import pytest

from gpucommons.sources.kubernetes.api import ClusterAccess, in_cluster
from gpucommons.sources.source import SourceAbsent, SourceError

INSIDE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443", "NODE_NAME": "node-1"}


def test_in_a_pod() -> None:
    account = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    expected = ClusterAccess("https://10.0.0.1:6443", "node-1", str(account / "ca.crt"), str(account / "token"))
    assert in_cluster(INSIDE) == expected


def test_an_ipv6_address_is_bracketed() -> None:
    assert in_cluster({**INSIDE, "KUBERNETES_SERVICE_HOST": "fd00::1"}).url == "https://[fd00::1]:6443"


def test_outside_a_pod_the_source_is_absent() -> None:
    with pytest.raises(SourceAbsent, match="does not run in a Kubernetes pod") as caught:
        in_cluster({})
    assert "DaemonSet" in caught.value.remedy


def test_without_node_name_the_error_says_where_to_take_it_from() -> None:
    with pytest.raises(SourceError, match=r"spec\.nodeName") as caught:
        in_cluster({key: value for key, value in INSIDE.items() if key != "NODE_NAME"})
    assert caught.value.reason == "settings"


@pytest.mark.parametrize("content", [b"", b"\n", b"a\nb", b"a\x00b", "ü".encode()])
def test_an_invalid_token_is_not_sent(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="contains no token"):
        ClusterAccess("https://x", "n", token_path=str(path)).headers()


def test_the_line_break_after_a_token_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("abc.def\n")
    assert ClusterAccess("https://x", "n", token_path=str(path)).headers() == {"Authorization": "Bearer abc.def"}
    assert ClusterAccess("https://x", "n").headers() == {}


def test_the_error_names_a_missing_authority(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        ClusterAccess("https://x", "n", ca_path=str(tmp_path / "none.crt")).tls()
