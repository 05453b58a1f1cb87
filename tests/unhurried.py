"""The number of examples of a property test. conftest.py sets what else is the same for all of them."""

from hypothesis import settings


def unhurried(examples: int = 60) -> settings:
    return settings(max_examples=examples)
