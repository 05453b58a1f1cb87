"""Commands as another user of the machine. For tests that run as root."""

ROOT = 0


def as_user(uid: int) -> list[str]:
    """What another user runs. Python may be installed below a home that only root may enter: hence the capability."""
    caps = () if uid == ROOT else ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *caps]
