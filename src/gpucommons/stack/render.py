"""All configuration files of the stack, generated from the settings. Only `write` changes the disk."""

import os
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from gpucommons.config.stack import StackSettings
from gpucommons.stack.alertmanager import AlertmanagerSecrets, alertmanager_config
from gpucommons.stack.compose_file import ComposeHost, compose_file
from gpucommons.stack.errors import StackError
from gpucommons.stack.grafana import dashboard_provider, datasources
from gpucommons.stack.layout import Layout
from gpucommons.stack.prometheus import PrometheusPaths, prometheus_config, settings_rules

_TOKEN, _PASSWORD, _AGENTS_CA, _AGENTS_PASSWORD = "token", "smtp_password", "agents_ca.pem", "agents_password"
_TEAMS_URL = "teams_webhook_url"
_HEADER = "# Written by `gpucommons stack`; changes are overwritten. Settings: [stack] in gpucommons.toml.\n"


class _Plain(yaml.SafeDumper):
    """Without anchors, and with block style for multi-line text, since people read these files."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _text)


def to_yaml(value: Mapping[str, Any]) -> str:
    text: str = yaml.dump(dict(value), Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)
    return text


def packaged(directory: str, suffix: str) -> Iterator[tuple[str, str]]:
    """Name and text of each data file in a directory of this package, sorted by name."""
    folder = files("gpucommons.stack").joinpath(directory)
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.name.endswith(suffix):
            yield entry.name, entry.read_text("utf-8")


def rendered(
    settings: StackSettings, layout: Layout, node: str, with_grafana: bool, host: ComposeHost
) -> dict[str, str]:
    """Text by path below the configuration directory. Reads only the files that hold secrets."""
    alertmanager = layout.config_of("alertmanager")
    paths = PrometheusPaths(
        rules="rules/*.yml",
        site_rules=f"{settings.rules_dir}/*.yml" if settings.rules_dir else "",
        targets=f"{settings.targets_dir or layout.targets}/*.yml",
        remote_write_token=_TOKEN,
        agents_ca=_AGENTS_CA,
        agents_password=_AGENTS_PASSWORD,
    )
    secrets = AlertmanagerSecrets(
        webhook_url=read_secret(settings.webhook_url_file, "webhook_url_file"),
        webhook_token_file=str(alertmanager / _TOKEN),
        smtp_password_file=str(alertmanager / _PASSWORD),
        teams_webhook_url_file=str(alertmanager / _TEAMS_URL),
    )
    out = {
        "prometheus/prometheus.yml": _HEADER + to_yaml(prometheus_config(settings, paths, node, with_grafana)),
        "prometheus/rules/settings.yml": _HEADER + to_yaml(settings_rules(settings)),
        "alertmanager/alertmanager.yml": _HEADER + to_yaml(alertmanager_config(settings, secrets)),
    }
    out |= {f"prometheus/rules/{name}": text for name, text in packaged("rules", ".yml")}
    # Copies, because Alertmanager would take the line end that an editor adds as a part of the password, and because
    # the user of the container must be able to read them.
    copies = {
        f"prometheus/{_AGENTS_CA}": read_secret(settings.agents_ca_file, "agents_ca_file"),
        f"prometheus/{_AGENTS_PASSWORD}": read_secret(settings.agents_password_file, "agents_password_file"),
        f"prometheus/{_TOKEN}": read_secret(settings.remote_write_token_file, "remote_write_token_file"),
        f"alertmanager/{_TOKEN}": read_secret(settings.webhook_token_file, "webhook_token_file"),
        f"alertmanager/{_PASSWORD}": read_secret(settings.smtp_password_file, "smtp_password_file"),
        f"alertmanager/{_TEAMS_URL}": read_secret(settings.teams_webhook_url_file, "teams_webhook_url_file"),
    }
    out |= {name: text for name, text in copies.items() if text is not None}
    return out | _for_grafana(settings, layout, host) if with_grafana else out


def _for_grafana(settings: StackSettings, layout: Layout, host: ComposeHost) -> dict[str, str]:
    json_files = layout.config_of("grafana") / "json"
    return {
        "compose.yaml": _HEADER + to_yaml(compose_file(settings, layout, host)),
        "grafana/datasources/prometheus.yml": _HEADER + to_yaml(datasources(settings)),
        "grafana/dashboards/gpucommons.yml": _HEADER + to_yaml(dashboard_provider(str(json_files))),
        **{f"grafana/json/{name}": text for name, text in packaged("dashboards", ".json")},
    }


def read_secret(file: str, key: str) -> str | None:
    if not file:
        return None
    try:
        text = Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StackError(
            f"stack.{key}: cannot read {file}: {error}; write the secret to this file and make it readable"
        ) from error
    if not text:
        raise StackError(f"stack.{key}: {file} is empty; write the secret to it")
    return text


def write(out: Mapping[str, str], directory: Path) -> None:
    """Makes the directory hold exactly `out`; each file is replaced atomically."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in out.items():
        file = directory / name
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = file.with_name(f".{file.name}.new")
        # Some of the files hold secrets.
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as target:
            target.write(text)
        fresh.replace(file)
    for file in [path for path in directory.rglob("*") if path.is_file()]:
        if str(file.relative_to(directory)) not in out:
            file.unlink()
