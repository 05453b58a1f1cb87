"""The scrape configurations of peers, unchanged: each target that the agent replaces is up under the peer's host name.

    python -m bench.scrape_configs FILE...

FILE is a peer's prometheus.yml, or a page (.md) with `scrape_configs` in a block of YAML; they are not part of this
project. For each, a Prometheus in a network namespace runs the file as it is, and the agent in another one has the
peers' ports. /etc/hosts of the first has the names of the targets, as Docker or a cluster would resolve them. Needs
root. Bar: every target on one of these ports is up.
"""

import re
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from bench.table import show
from deploy.deployments import systemd
from deploy.test_scrapes import PROMETHEUS, run, targets
from testbeds.hosts import host, join
from waiting import until

PORTS = {"nodeexporter": 9100, "ds01": 9101, "dcgm": 9400, "xpushare": 9402, "nvidiasmi": 9835}
SETTINGS = "[listeners]\n" + "".join(f'{dialect} = "0.0.0.0:{port}"\n' for dialect, port in PORTS.items())
AGENT, SCRAPER = "10.78.0.1", "10.78.0.2"
# Longer than twice the longest interval of the known files, 30 s.
WAIT_S = 75.0


def configuration(file: Path) -> str:
    """The file, or the one block of a page that has scrape_configs."""
    if file.suffix != ".md":
        return file.read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", file.read_text(), re.MULTILINE | re.DOTALL)
    (chosen,) = (block for block in blocks if "scrape_configs" in block)
    return str(chosen)


def replaced(text: str) -> list[str]:
    """The targets with a port of a peer that the agent replaces."""
    jobs = yaml.safe_load(text)["scrape_configs"]
    targets = [target for job in jobs for group in job["static_configs"] for target in group["targets"]]
    return [target for target in targets if int(target.rpartition(":")[2]) in PORTS.values()]


def scraped(text: str) -> dict[str, tuple[str, str]]:
    """Health and last error of each replaced target, once all are up or after a while."""
    names = replaced(text)
    by_address: dict[str, tuple[str, str]] = {}

    def all_up() -> bool:
        for target in targets(scraper):
            # The label `instance` may be set by the file.
            address = target["discoveredLabels"]["__address__"]
            if address in names:
                by_address[address] = (target["health"], target["lastError"])
        return [by_address.get(name, ("", ""))[0] for name in names] == ["up"] * len(names)

    with TemporaryDirectory() as directory, host() as place, host() as scraper, ExitStack() as stack:
        join(place, f"{AGENT}/30", scraper, f"{SCRAPER}/30", "wire")
        run(stack, place, systemd("peers' ports", [], SETTINGS), Path(directory) / "agent.log")
        scraper.write("/etc/hosts", "".join(f"{AGENT} {name.rpartition(':')[0]}\n" for name in names))
        file = Path(directory) / "prometheus.yml"
        file.write_text(text)
        command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={directory}/data"]
        command.append(f"--web.listen-address={PROMETHEUS}")
        stack.enter_context(scraper.running(command, Path(directory) / "prometheus.log"))
        with suppress(AssertionError):
            until(all_up, "every target is up", within_s=WAIT_S)
    return by_address


def main() -> None:
    rows = []
    for file in map(Path, sys.argv[1:]):
        text = configuration(file)
        states = scraped(text)
        rows += [[file.name, name, *states.get(name, ("not scraped", ""))] for name in replaced(text)]
    show("Peers' scrape configurations, unchanged", ["file", "target", "health", "last error"], rows)
    sys.exit(0 if rows and all(row[2] == "up" for row in rows) else 1)


if __name__ == "__main__":
    main()
