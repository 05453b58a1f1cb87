"""How our properties are tried: as often as told, and however slow the machine is just now."""

from hypothesis import HealthCheck, settings


def unhurried(examples: int = 60) -> settings:
    return settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
