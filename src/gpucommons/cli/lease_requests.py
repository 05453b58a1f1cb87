"""One request to the agent about leases, and its answer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucommons.cli.command_line import AgentUnreachable, CommandError, NotFound
from gpucommons.cli.options import load_settings
from gpucommons.config.runtime_directory import lease_sockets
from gpucommons.leases.protocol import LeaseServiceGone, answer_of


def ask(config: Path | None, request: Mapping[str, object]) -> Any:
    """Raises AgentUnreachable where no agent answers, NotFound for an unknown id, CommandError where it refuses."""
    try:
        line = answer_of(lease_sockets(load_settings(config, {}).settings.leases.socket), request)
    except LeaseServiceGone as gone:
        raise AgentUnreachable(f"no agent gives leases here: {gone}; start it with: gpucommons up") from None
    if line.get("unknown"):
        raise NotFound(str(line.get("error")))
    if line.get("event") != "answer":
        raise CommandError(str(line.get("error")))
    return line["answer"]
