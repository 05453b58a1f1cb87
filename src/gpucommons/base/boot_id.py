"""The kernel's id of this boot. Pids and start times of processes identify them within one boot only."""

from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Empty where the kernel has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
