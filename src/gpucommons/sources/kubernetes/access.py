"""Address and credentials of the cluster's API. The token is read for each request: the kubelet renews it."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpucommons.sources.source import SourceAbsent, SourceError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_MOST_TOKEN_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """`url` is that of the API server or of a kubelet. Without `ca_path` the system's authorities are trusted."""

    url: str
    node_name: str
    ca_path: str | None = None
    token_path: str | None = None

    def headers(self) -> dict[str, str]:
        if self.token_path is None:
            return {}
        try:
            with open(self.token_path, "rb") as file:
                token = file.read(_MOST_TOKEN_BYTES).strip()
        except OSError as error:
            raise SourceError("token", f"cannot read {self.token_path}: {error.strerror}") from None
        if not token or not token.isascii() or not token.decode().isprintable():
            raise SourceError("token", f"{self.token_path} contains no token")
        return {"Authorization": f"Bearer {token.decode()}"}

    def tls(self) -> ssl.SSLContext:
        """Always verifies. The file is read each time, so that a renewed authority is trusted after a reconnect."""
        try:
            return ssl.create_default_context(cafile=self.ca_path)
        except ssl.SSLError:
            why = "it contains no certificate"
        except OSError as error:
            why = error.strerror or type(error).__name__
        raise SourceError("tls", f"cannot load the authority's certificate {self.ca_path}: {why}")


def in_cluster(environment: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> ClusterAccess:
    """The API server as Kubernetes announces it to each pod."""
    host = environment.get("KUBERNETES_SERVICE_HOST")
    if not host:
        raise SourceAbsent(
            "the agent does not run in a Kubernetes pod, and kubernetes.api_url is not set",
            "on a Kubernetes node, run the agent as a DaemonSet",
        )
    node_name = environment.get("NODE_NAME")
    if not node_name:
        raise SourceError("settings", "NODE_NAME is not set: set it from spec.nodeName in the agent's manifest")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    address = f"[{host}]" if ":" in host else host
    return ClusterAccess(
        f"https://{address}:{port}",
        node_name,
        ca_path=str(service_account / "ca.crt"),
        token_path=str(service_account / "token"),
    )
