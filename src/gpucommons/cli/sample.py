"""`gpucommons sample`: take one sample, print it, exit."""

import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import typer

from gpucommons.cli.one_sample import take_sample
from gpucommons.cli.options import ConfigFile, Procfs, Simulate
from gpucommons.cli.run import CommandError
from gpucommons.faces.dialects.all import DIALECTS


class SampleFormat(StrEnum):
    TEXT = "text"
    OPENMETRICS = "openmetrics"
    JSON = "json"


def sample(
    dialect: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"One vocabulary: {', '.join(d.name for d in DIALECTS)}. Default: those of the main /metrics.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[SampleFormat, typer.Option(help="How to print it.")] = SampleFormat.TEXT,
    config: ConfigFile = None,
    simulate: Simulate = None,
    procfs: Procfs = None,
) -> None:
    """Take one sample of this node, print it, and exit within 3 seconds."""
    if dialect is not None and dialect not in {d.name for d in DIALECTS}:
        raise CommandError(f"no dialect '{dialect}'; there are {', '.join(d.name for d in DIALECTS)}")
    agent, snapshot = take_sample(config, simulate, procfs)
    if format is SampleFormat.JSON:
        text = json.dumps(as_json(snapshot), indent=2, ensure_ascii=False) + "\n"
    else:
        body, _ = agent.exposition.metrics(dialect, openmetrics=format is SampleFormat.OPENMETRICS, gzip=False)
        text = body.decode()
    sys.stdout.write(text)


def as_json(value: object) -> object:
    """Frozen values as JSON: dataclasses and named tuples by field name, a number that is none as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: as_json(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: as_json(item) for name, item in zip(value._fields, value, strict=True)}
    if isinstance(value, Mapping):
        return {" ".join(map(str, k)) if isinstance(k, tuple) else str(k): as_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [as_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
