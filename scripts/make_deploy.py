"""Writes the files of deploy/ that are drawn from the code. A test compares them with what is committed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpucommons.config.stack import StackSettings
from gpucommons.stack.compose_file import ComposeHost, compose_file
from gpucommons.stack.layout import Layout
from gpucommons.stack.prometheus import cluster_config, settings_rules
from gpucommons.stack.render import packaged, to_yaml

_MADE = "# Drawn from the code by `make deploy-files`; a change here is lost.\n"
_NODE_USER = ComposeHost(user="65534:65534", has_gpus=True)


def compose() -> str:
    layout = Layout(Path("/var/lib/gpucommons/stack"))
    return (
        f"{_MADE}# What `gpucommons stack start` runs on a node with GPUs, the agent included.\n"
        "# The files it mounts are written by that command, which is also the way to start it.\n"
        + to_yaml(compose_file(StackSettings(run_agent=True), layout, _NODE_USER))
    )


def prometheus_config_maps() -> str:
    settings = StackSettings()
    config = {"prometheus.yml": to_yaml(cluster_config(settings, "/etc/prometheus-rules/*.yml"))}
    rules = {"settings.yml": to_yaml(settings_rules(settings)), **dict(packaged("rules", ".yml"))}
    return _MADE + "---\n".join(
        to_yaml(_config_map(name, data)) for name, data in (("prometheus", config), ("prometheus-rules", rules))
    )


def _config_map(name: str, data: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "monitoring"},
        "data": data,
    }


FILES: dict[str, Callable[[], str]] = {
    "compose.yaml": compose,
    "kubernetes/prometheus-config.yaml": prometheus_config_maps,
}

if __name__ == "__main__":
    deploy = Path(__file__).resolve().parents[1] / "deploy"
    for name, text in FILES.items():
        (deploy / name).write_text(text())
        print(f"deploy/{name}")
