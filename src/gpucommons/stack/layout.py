"""The paths of the stack's files, the same inside and outside of a container. Pure."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Layout:
    """One data directory: what gpucommons writes (config, run), what the programs keep, and the secrets."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config"

    def config_of(self, service: str) -> Path:
        """One directory per program, so that a program sees only its own secrets."""
        return self.config / service

    @property
    def prometheus_config(self) -> Path:
        return self.config_of("prometheus") / "prometheus.yml"

    @property
    def alertmanager_config(self) -> Path:
        return self.config_of("alertmanager") / "alertmanager.yml"

    @property
    def compose_file(self) -> Path:
        return self.config / "compose.yaml"

    @property
    def targets(self) -> Path:
        return self.root / "targets"

    @property
    def secrets(self) -> Path:
        return self.root / "secrets"

    @property
    def grafana_password(self) -> Path:
        return self.secrets / "grafana_admin_password"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    @property
    def run(self) -> Path:
        return self.root / "run"

    def data(self, service: str) -> Path:
        return self.root / service

    def log(self, service: str) -> Path:
        return self.logs / f"{service}.log"


def default_root(home: Path, state_home: str | None, is_root: bool) -> Path:
    if is_root:
        return Path("/var/lib/gpucommons/stack")
    return (Path(state_home) if state_home else home / ".local" / "state") / "gpucommons" / "stack"
