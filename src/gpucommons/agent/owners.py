"""The rules of attribution from the settings. A mistake in them is a ConfigError of one line at the start."""

from pathlib import Path

from gpucommons.config.option import ConfigError
from gpucommons.config.sources import OwnersSettings
from gpucommons.owners.owner import OwnerRules, SiteRuleError, parse_order, parse_site_rules


def owner_rules(settings: OwnersSettings) -> OwnerRules:
    try:
        order = parse_order(settings.order)
    except ValueError as error:
        raise ConfigError(f"owners.order: {error}") from error
    labels = tuple(label.strip() for label in settings.labels.split(",") if label.strip())
    if not settings.rules_file:
        return OwnerRules(order, labels)
    try:
        site = parse_site_rules(Path(settings.rules_file).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, SiteRuleError) as error:
        raise ConfigError(f"owners.rules_file: {settings.rules_file}: {error}") from error
    return OwnerRules(order, labels, site)
