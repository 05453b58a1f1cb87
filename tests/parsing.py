"""Parses an exposition with prometheus_client's two parsers, as {(sample name, labels): value}."""

import math

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str, openmetrics: bool = False) -> Series:
    """Every sample of a text; a duplicate series is an error."""
    families = parse_openmetrics(text) if openmetrics else parse_text(text)
    found: Series = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"served twice: {key}"
            found[key] = sample.value
    return found


def types_of(text: str) -> dict[str, str]:
    return {family.name: family.type for family in parse_text(text)}


def same(left: float, right: float) -> bool:
    """As a 64-bit float, which is all that Prometheus keeps of a number."""
    return float(left) == float(right) or (math.isnan(left) and math.isnan(right))
