"""The name of a metric leads to its file: prefix to dialect, next words to module."""

import importlib
import pkgutil
from types import ModuleType

import pytest

from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.faces.dialects.dialect import Dialect

DIALECTS_PACKAGE = "gpucommons.faces.dialects"
# A prefix that belongs to the dialect and is not a word of the module's name.
PREFIXES = {"dcgm": "DCGM_", "nodeexporter": "node_", "node": ""}
# Prefixes that are named otherwise than their module.
# label of the snapshot.
ALIASES = {
    "dcgm": {"FI": "fields", "EXP": "windows", "EXP_GPU_HEALTH": "status", "EXP_P2P": "status"},
    "nvshare": {"nvml": "gpus", "scheduler": "clients"},
    "nodeexporter": dict.fromkeys(("cpu", "load", "memory", "filesystem", "disk", "md", "network"), "resources")
    | dict.fromkeys(("bonding", "netstat", "softnet"), "resources")
    | dict.fromkeys(
        ("boot", "context", "forks", "intr", "procs", "vmstat", "uname", "time", "timex", "filefd"), "kernel"
    )
    | dict.fromkeys(("pressure", "nf_conntrack", "sockstat", "hwmon", "scrape", "exporter"), "kernel"),
    "gpucommons": dict.fromkeys(("snapshots", "simulated", "exposition", "web", "sources", "problems"), "agent")
    | dict.fromkeys(("health", "pressure"), "agent")
    | dict.fromkeys(("gpu_mig", "gpu_pipe", "gpu_process", "nvml"), "gpus")
    | dict.fromkeys(("gpu_unattributed", "attribution", "vgpu"), "owners")
    | dict.fromkeys(("containers", "allocations", "followed_events", "quotas"), "slots")
    | dict.fromkeys(("ledger", "event_log"), "accounts")
    | dict.fromkeys(("pauser", "parking"), "sharing")
    | dict.fromkeys(("mps", "idle"), "leases"),
}

SPLIT_DIALECTS = [
    dialect
    for dialect in DIALECTS
    if hasattr(importlib.import_module(f"{DIALECTS_PACKAGE}.{dialect.name}"), "__path__")
]


def modules_of(dialect: Dialect) -> dict[str, ModuleType]:
    package = importlib.import_module(f"{DIALECTS_PACKAGE}.{dialect.name}")
    names = [info.name for info in pkgutil.iter_modules(package.__path__)]
    return {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}


def guess(name: str, words: dict[str, str]) -> str | None:
    """The module of the first word of `name` that leads to one; of several at one place, the longest."""
    parts = name.split("_")
    for start in range(len(parts)):
        rest = "_".join(parts[start:])
        fitting = [word for word in words if rest.rstrip("0123456789") == word or rest.startswith(f"{word}_")]
        if fitting:
            return words[max(fitting, key=len)]
    return None


@pytest.mark.parametrize("dialect", SPLIT_DIALECTS, ids=lambda dialect: str(dialect.name))
def test_the_name_of_a_metric_leads_to_its_module(dialect: Dialect) -> None:
    modules = modules_of(dialect)
    # gpucommons_owner_* and gpucommons_owners_* are both in owners.py.
    homes = {name: name for name in modules} | ALIASES.get(dialect.name, {})
    words = {form: home for name, home in homes.items() for form in (name, name.removesuffix("s"))}
    prefix = PREFIXES.get(dialect.name, f"{dialect.name}_")
    wrong = {}
    for metric in dialect.catalogue:
        (home,) = [name for name, module in modules.items() if metric in getattr(module, "CATALOGUE", ())]
        found = guess(metric.name.removeprefix(prefix), words)
        if found != home:
            wrong[metric.name] = f"is in {home}.py, its name leads to {found}.py"
    assert not wrong
