"""The number of examples of a property test. conftest.py sets what else is the same for all of them."""

from hypothesis import settings


def unhurried(examples: int = 60) -> settings:
    """So many in a random search. What repeats the same examples in each run has no more of them than other tests."""
    repeated = settings.get_profile("repeatable")
    return settings(max_examples=min(examples, repeated.max_examples) if settings().derandomize else examples)


def costly(repeated: int) -> settings:
    """For a test whose examples take a tenth of a second or more: so many where the same ones repeat in each run."""
    return settings(max_examples=repeated) if settings().derandomize else settings()
