"""Settings of property tests: a number of examples, without a deadline for slow machines."""

from hypothesis import HealthCheck, settings


def unhurried(examples: int = 60) -> settings:
    return settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
