"""Which pauser the agent uses, and on which terms programs on leased GPUs are paused."""

import os
from pathlib import Path
from typing import Final

from gpucommons.agent.sharing_checks import enforces_leases
from gpucommons.agent.sharing_rules import program_rules
from gpucommons.config.settings import Settings
from gpucommons.pauser.client import PauserSettings
from gpucommons.pauser.places import SERVICE_SOCKET
from gpucommons.scheduler.service.enforcement import EnforcementTerms

# Without readings for so long, programs that were paused for a lease run again.
_LEAST_STALE_S: Final = 10.0
_STALE_INTERVALS: Final = 5


def pauser_settings(settings: Settings) -> PauserSettings:
    scheduler = settings.scheduler
    backend = {"driver": "cuda", "freeze": "freeze"}[scheduler.pause]
    return PauserSettings(_socket(settings), backend=backend, max_pause_s=scheduler.max_pause_s)


def _socket(settings: Settings) -> Path | None:
    """None: the agent starts its own pauser. Only root may pause the programs of others."""
    scheduler = settings.scheduler
    if scheduler.pauser_socket:
        return Path(scheduler.pauser_socket)
    others = scheduler.share_programs == "all" or (not scheduler.shares_programs and enforces_leases(settings))
    return SERVICE_SOCKET if others and os.geteuid() != 0 else None


def enforcement_terms(settings: Settings) -> EnforcementTerms:
    """Raises ConfigError."""
    own_only = os.geteuid() != 0 and _socket(settings) is None
    stale_after_s = max(_LEAST_STALE_S, _STALE_INTERVALS * settings.sampling.interval_s)
    return EnforcementTerms(own_only, stale_after_s, program_rules(settings))
