"""The rules of [sharing_quotas], for clients of nvshare and for programs.

The agent and `check-config` refuse a wrong rule in the same words.
"""

from collections.abc import Iterator
from typing import Final

from gpucommons.base.text import parse_core, parse_gpu_memory
from gpucommons.config.option import ConfigError, Mistakes
from gpucommons.config.scheduler import SharingQuotaSettings
from gpucommons.config.settings import Settings
from gpucommons.model.words import SharingClass
from gpucommons.scheduler.parking.sleep_calls import is_local
from gpucommons.scheduler.policy.quotas import QuotaRule, QuotaValues
from gpucommons.scheduler.programs.matching import ProgramRule

# The kernel, the container runtime or Slurm says these of a process. A client of nvshare only claims its pod's name.
_OF_PROCESSES: Final = ("user", "group", "container", "job", "unit", "command")
# Users cannot choose these: see ProgramRule.names_owner.
_OF_OWNERS: Final = ("user", "uid", "container", "pod", "job", "unit")


def client_rules(settings: Settings) -> tuple[QuotaRule, ...]:
    """The rules for nvshare's clients: those that match by pod, namespace and uid only. Raises ConfigError."""
    return tuple(
        QuotaRule(section.pod, section.namespace, section.uid, quota)
        for _, section, quota in _sections(settings)
        if section.share and all(getattr(section, pattern) == "*" for pattern in _OF_PROCESSES)
    )


def program_rules(settings: Settings) -> tuple[ProgramRule, ...]:
    """The rules for programs, in the order of the file. Raises ConfigError."""
    return tuple(
        ProgramRule(
            name,
            user=section.user,
            group=section.group,
            container=section.container,
            pod=section.pod,
            namespace=section.namespace,
            job=section.job,
            unit=section.unit,
            command=section.command,
            uid=section.uid,
            quota=quota,
            share=section.share,
            sleep_url=section.sleep_url,
            wake_url=section.wake_url,
        )
        for name, section, quota in _sections(settings)
    )


def priority_classes(text: str) -> dict[str, SharingClass]:
    """The table of kubernetes.priority_classes."""
    rows = (part.partition("=") for part in text.split(",") if part.strip())
    return {name.strip(): SharingClass(chosen.strip()) for name, _, chosen in rows}


def check_rules(settings: Settings) -> None:
    """Raises ConfigError, one line for each rule with a wrong value."""
    mistakes = Mistakes()
    for name, section in settings.sharing_quotas.items():
        with mistakes.collect():
            _values(name, section)
    mistakes.raise_any()


def _sections(settings: Settings) -> Iterator[tuple[str, SharingQuotaSettings, QuotaValues]]:
    for name, section in settings.sharing_quotas.items():
        yield name, section, _values(name, section)


def _values(name: str, section: SharingQuotaSettings) -> QuotaValues:
    """Raises ConfigError."""
    try:
        return _check_section(section)
    except ValueError as error:
        raise ConfigError(f"sharing_quotas.{name}: {error}") from error


def _check_section(section: SharingQuotaSettings) -> QuotaValues:
    for pattern in _OF_PROCESSES:
        if not getattr(section, pattern):
            raise ValueError(f"{pattern} is empty and matches no program: use a shell pattern, or leave it out")
    if not section.share and (section.memory or section.core or section.class_):
        raise ValueError(
            "share = false and a quota or class: what is left alone has neither; remove memory, core, class or share"
        )
    if bool(section.sleep_url) != bool(section.wake_url):
        raise ValueError("sleep_url and wake_url belong together: set both or none")
    for url in filter(None, (section.sleep_url, section.wake_url)):
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is not an address: use http://127.0.0.1:8000/sleep or the like")
        if not is_local(url) and all(getattr(section, name) == "*" for name in _OF_OWNERS):
            raise ValueError(
                f"{url!r} is not on this machine, and any user's program may match: add one of {', '.join(_OF_OWNERS)}"
            )
    memory = parse_gpu_memory(section.memory) if section.memory else None
    core = parse_core(str(section.core)) if section.core else None
    return QuotaValues(memory, core, SharingClass(section.class_) if section.class_ else None)
