"""A compressed day at 1 Hz: 86,400 passes on the fake driver with all its faults, and what they leak.

`python -m bench.nvml_day`. Bars: resident memory within 2 MB, no additional thread or descriptor.
"""

import argparse
import logging
import tempfile
import time
from pathlib import Path

from bench.table import show
from fakes.nvml.build import build
from fakes.nvml.day import footprint, live_through
from fakes.nvml.rig import rig_in

DAY_S = 86_400
WARM_UP_S = 3600
ROWS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=DAY_S)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as directory:
        library = build(Path(directory) / "lib")
        with rig_in(Path(directory) / "rig", library) as rig:
            live_through(rig, 0, WARM_UP_S)
            first = footprint(rig)
            began_s = time.monotonic()
            rows, good, step = [], 0, options.seconds // ROWS
            for row in range(ROWS):
                good += live_through(rig, WARM_UP_S + row * step, step)
                now = footprint(rig)
                grown = f"{(now.rss_bytes - first.rss_bytes) / 1e6:.2f}"
                counts = (now.descriptors, now.threads, now.gpm_samples, now.event_sets)
                rows.append([(row + 1) * step, good, f"{now.rss_bytes / 1e6:.2f}", grown, *counts])
    title = f"A day at the GPUs in {time.monotonic() - began_s:.0f} s; bar: grown by less than 2 MB"
    show(
        title, ("passes", "readings", "RSS MB", "grown MB", "descriptors", "threads", "GPM samples", "event sets"), rows
    )


if __name__ == "__main__":
    main()
