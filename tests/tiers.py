"""Values of `parametrize` that run in the long tier only: a short one has some of the cases, the long one all."""

from typing import Any

import pytest


def in_long_tier(*values: object) -> list[Any]:
    return [pytest.param(value, marks=pytest.mark.long) for value in values]
