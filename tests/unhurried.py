"""The number of examples of a property test, and what is the same for all of them."""

import os
from typing import Final

from hypothesis import HealthCheck, settings

_REPEATED: Final = 25

# Here, and not in conftest.py: `make torture` imports tests without pytest.
settings.register_profile(
    "random",
    deadline=None,
    max_examples=int(os.environ.get("TEST_EXAMPLES", "40")),
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile(
    "repeatable", settings.get_profile("random"), max_examples=_REPEATED, derandomize=True, database=None
)


def load_examples() -> None:
    """For all tests that are imported from now on."""
    settings.load_profile("random" if os.environ.get("TEST_RANDOM") else "repeatable")


def unhurried(examples: int = 60) -> settings:
    """So many in a random search. What repeats the same examples in each run has no more of them than other tests."""
    return settings(max_examples=min(examples, _REPEATED) if settings().derandomize else examples)


def costly(repeated: int) -> settings:
    """For a test whose examples take a tenth of a second or more: so many where the same ones repeat in each run."""
    return settings(max_examples=repeated) if settings().derandomize else settings()
