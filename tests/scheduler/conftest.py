"""How long the random tests of the scheduler run: a few thousand steps in CI, a million in each with
`pytest tests/scheduler --hypothesis-profile nightly --timeout 0` (without the limit of a test)."""

import pytest
from hypothesis import HealthCheck, settings

NIGHTLY = "nightly"

settings.register_profile(
    NIGHTLY,
    max_examples=10_000,
    stateful_step_count=100,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="session")
def walk_steps(request: pytest.FixtureRequest) -> int:
    return 1_000_000 if request.config.getoption("--hypothesis-profile", None) == NIGHTLY else 30_000
