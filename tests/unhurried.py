"""The number of examples of a property test. conftest.py sets what else is the same for all of them."""

from hypothesis import settings


def unhurried(examples: int = 60) -> settings:
    """So many in a random search. What repeats the same examples in each run has no more of them than other tests."""
    repeated = settings.get_profile("repeatable")
    return settings(max_examples=min(examples, repeated.max_examples) if settings().derandomize else examples)
