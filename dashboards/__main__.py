"""Writes each dashboard as JSON into the package: `python -m dashboards`."""

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import dcgm, historical, monthly, overview, sharing, usage
from dashboards.board import Board, built

BOARDS: dict[str, Board] = {
    "ds01_overview": overview.BOARD,
    "ds01_user": usage.BOARD,
    "nvidia_dcgm": dcgm.BOARD,
    "gpu_sharing": sharing.BOARD,
    "ds01_historical": historical.BOARD,
    "ds01_monthly": monthly.BOARD,
}


def to_json(board: Board) -> str:
    """In the form that Grafana's own types produce after parsing."""
    register_default_plugins()
    first = json.loads(json.dumps(built(board), cls=JSONEncoder))
    return json.dumps(Dashboard.from_json(first), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    folder = Path(__file__).resolve().parents[1] / "src" / "gpucommons" / "stack" / "dashboards"
    for name, board in BOARDS.items():
        (folder / f"{name}.json").write_text(to_json(board))
        print(f"{name}.json")
