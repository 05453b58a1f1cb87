"""Where this node's pods are read from, by the settings."""

import os

from gpucommons.config.dialects import DcgmSettings
from gpucommons.config.option import ConfigError
from gpucommons.config.sources import KubernetesSettings
from gpucommons.sources.kubernetes.access import ClusterAccess
from gpucommons.sources.kubernetes.kubelet_pods import KubeletPodFollower
from gpucommons.sources.kubernetes.pod_json import LabelPatterns
from gpucommons.sources.kubernetes.source import PodFollower


def pod_follower(settings: KubernetesSettings, dcgm: DcgmSettings) -> PodFollower | KubeletPodFollower:
    """Labels are kept for owners, and for the dcgm dialect if it shows them."""
    names = [label.strip() for label in settings.pod_labels.split(",") if label.strip()]
    patterns = [pattern.strip() for pattern in dcgm.pod_label_allowlist.split(",")] if dcgm.pod_labels else []
    labels = LabelPatterns(names, patterns)
    access = _access(settings)
    if settings.source == "api":
        return PodFollower(access, allowed_labels=labels)
    if access is None:
        raise ConfigError("kubernetes.source = kubelet requires kubernetes.api_url, such as https://127.0.0.1:10250")
    return KubeletPodFollower(access, allowed_labels=labels)


def _access(settings: KubernetesSettings) -> ClusterAccess | None:
    """None: use the API server that Kubernetes announces to each pod."""
    if not settings.api_url:
        return None
    node_name = settings.node_name or os.environ.get("NODE_NAME", "")
    if not node_name:
        raise ConfigError("kubernetes.node_name: required with kubernetes.api_url (or set NODE_NAME)")
    return ClusterAccess(settings.api_url, node_name, settings.ca_file or None, settings.token_file or None)
