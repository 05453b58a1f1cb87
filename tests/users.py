"""Commands as another user of the machine. For tests that run as root."""

ROOT = 0


def as_user(uid: int, *capabilities: str) -> list[str]:
    """What another user runs. Python may be installed below a home that only root may enter: hence DAC_READ_SEARCH."""
    given = ",".join(f"+{name}" for name in ("dac_read_search", *capabilities))
    caps = () if uid == ROOT else (f"--inh-caps={given}", f"--ambient-caps={given}")
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *caps]
