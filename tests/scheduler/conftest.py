"""How long the random tests of the scheduler run: a few thousand steps in CI, a million with
`--hypothesis-profile nightly` (or HYPOTHESIS_PROFILE=nightly)."""

import os

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
    profile = request.config.getoption("--hypothesis-profile", None) or os.environ.get("HYPOTHESIS_PROFILE")
    return 1_000_000 if profile == NIGHTLY else 30_000
