"""`gpucommons gpus`: take one sample and print the GPUs of this node as a table, or as JSON."""

import json
import sys
from typing import Annotated

import typer

from gpucommons.cli.gpus_view import as_values, nothing, render
from gpucommons.cli.one_sample import take_sample
from gpucommons.cli.options import ConfigFile, Procfs, Simulate


def gpus(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: ConfigFile = None,
    simulate: Simulate = None,
    procfs: Procfs = None,
) -> None:
    """List the GPUs: memory, utilisation, temperature, power against its limit, processes, health."""
    _, snapshot = take_sample(config, simulate, procfs)
    if as_json:
        sys.stdout.write(json.dumps(as_values(snapshot), indent=2, ensure_ascii=False) + "\n")
    elif snapshot.readings.gpus is None:
        sys.stdout.write(nothing(snapshot) + "\n")
    else:
        render(snapshot, snapshot.readings.gpus, sys.stdout)
