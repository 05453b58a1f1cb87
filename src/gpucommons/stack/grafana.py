"""Grafana: where its data and dashboards come from, and its administrator's password, made once and kept secret."""

import os
import secrets
from pathlib import Path
from typing import Any

from gpucommons.config.stack import StackSettings

Yaml = dict[str, Any]
DATASOURCE_UID = "gpucommons-prometheus"


def datasources(settings: StackSettings) -> Yaml:
    return {
        "apiVersion": 1,
        "datasources": [
            {
                "name": "Prometheus",
                "uid": DATASOURCE_UID,
                "type": "prometheus",
                "access": "proxy",
                "url": f"http://{settings.prometheus_listen}",
                "isDefault": True,
                "editable": False,
                "jsonData": {"timeInterval": f"{settings.scrape_interval_s:g}s", "httpMethod": "POST"},
            }
        ],
    }


def dashboard_provider(directory: str) -> Yaml:
    return {
        "apiVersion": 1,
        "providers": [
            {
                "name": "gpucommons",
                "folder": "GPUs",
                "type": "file",
                "allowUiUpdates": False,
                "options": {"path": directory},
            }
        ],
    }


def ensure_password(file: Path, given: str | None) -> str | None:
    """The password if it was made just now, to be shown this once; None if it was there or was given."""
    if given:
        _write_secret(file, given)
        return None
    if file.exists():
        return None
    made = secrets.token_urlsafe(18)
    _write_secret(file, made)
    return made


def _write_secret(file: Path, text: str) -> None:
    """Never readable by others, not even for the instant between making and chmod."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(text)
