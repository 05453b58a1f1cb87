"""The meaning of XIDs, and that the alert rules judge them in the same way."""

import re
from pathlib import Path

from gpucommons.rules.health import Cause, xid_meaning
from gpucommons.stack import rules

RULES = Path(next(iter(rules.__path__))) / "gpucommons.yml"


def codes_of(alert: str) -> set[int]:
    block = RULES.read_text().split(f"alert: {alert}\n")[1].split("alert:")[0]
    found = re.search(r'xid=~"([\d|]+)"', block)
    assert found
    return {int(code) for code in found[1].split("|")}


def codes_with(cause: Cause) -> set[int]:
    return {code for code in range(1000) if xid_meaning(code).cause is cause}


def test_program_and_hardware_are_distinguished() -> None:
    assert xid_meaning(31).sentence == "page fault of the program, not the hardware"
    assert xid_meaning(79).sentence == "the GPU has fallen off the bus, a fault of the hardware"
    assert xid_meaning(79).remedy.startswith("Drain the node")


def test_an_unknown_code_blames_neither() -> None:
    assert xid_meaning(9999).cause is Cause.UNCLEAR


def test_the_alert_rules_agree() -> None:
    assert codes_of("GPUCommonsXIDApplication") == codes_with(Cause.PROGRAM)
    assert codes_of("GPUCommonsXIDCritical") <= codes_with(Cause.HARDWARE)
