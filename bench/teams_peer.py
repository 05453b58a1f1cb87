"""The card that Microsoft Teams gets for one alert: from DS01's Alertmanager configuration, and from the stack's.

`python -m bench.teams_peer ALERTMANAGER DS01_INFRA`, as root, with an Alertmanager of 0.28 or newer and a checkout of
ds01-infra. It runs with each configuration, unchanged, and gets the same critical alert; a server takes the place of
Teams. Bar: one card from each, of the same kind, with the alert's name, summary and description.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.inside import run_inside
from bench.table import show
from gpucommons.stack.prometheus import Layout
from prometheus_server import Alertmanager, answers, free_port
from receivers import hook
from stack.stacks import settings_on_free_ports, stack_in
from waiting import until

# As in DS01's file.
DS01_URL_FILE = Path("/etc/alertmanager/teams-webhook-url.txt")
NAME = "DS01GPUTemperatureCritical"
TEXTS = {"summary": "GPU 3 is at 91 degrees", "description": "It slows down at 87."}
ALERT = {"labels": {"alertname": NAME, "severity": "critical", "gpu": "3"}, "annotations": TEXTS}
# DS01's file waits 30 s before the first message of a critical alert.
WAIT_S = 90.0


def main() -> None:
    if len(sys.argv) == 3:
        run_inside("bench.teams_peer", *sys.argv[1:], within_s=300)
    compare(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))


def compare(program: Path, infra: Path, directory: Path) -> None:
    theirs = infra / "monitoring/alertmanager/alertmanager.yml"
    cards = {"DS01": card(program, theirs, directory / "ds01", DS01_URL_FILE)}
    url, layout = directory / "teams", Layout(directory / "data")
    url.write_text("http://127.0.0.1/\n")
    settings = settings_on_free_ports(teams_webhook_url_file=str(url))
    for name, text in stack_in(layout.root, settings).files(with_grafana=False).items():
        file = layout.config / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    ours = layout.config / "alertmanager/alertmanager.yml"
    cards["gpucommons"] = card(program, ours, directory / "ours", layout.config / "alertmanager/teams_webhook_url")
    rows = []
    for which, found in cards.items():
        text = json.dumps(found)
        kinds = [attachment["contentType"] for attachment in found["attachments"]]
        rows.append([which, ", ".join(kinds), *(part in text for part in (NAME, *TEXTS.values()))])
    show("Cards for Microsoft Teams", ["configuration", "kind", "name", *TEXTS], rows)
    same = len({row[1] for row in rows}) == 1 and all(all(row[2:]) for row in rows)
    sys.exit(0 if same else 1)


def card(program: Path, configuration: Path, directory: Path, url_file: Path) -> dict[str, Any]:
    """The one message for the alert."""
    port = free_port()
    command = [str(program), f"--config.file={configuration}", f"--storage.path={directory}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
    with hook() as (teams, address):
        url_file.parent.mkdir(parents=True, exist_ok=True)
        url_file.write_text(address)
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            server = Alertmanager(f"http://127.0.0.1:{port}")
            until(lambda: answers(f"{server.url}/-/ready"), "Alertmanager is ready")
            server.send(ALERT)
            until(lambda: teams.bodies, "a card", within_s=WAIT_S)
        finally:
            process.kill()
            process.wait()
        (found,) = teams.bodies
        return found


if __name__ == "__main__":
    main()
