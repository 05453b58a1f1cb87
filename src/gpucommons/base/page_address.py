"""The address of a node's page, from the labels of its target. Pure.

Labels come from outside: only names that are certainly a host, with or without a port, become part of an address.
"""

import re
from typing import Final

_HOST = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\]"
_INSTANCE: Final = re.compile(rf"({_HOST})(?::[0-9]{{1,5}})?", re.ASCII)
_PLACE: Final = re.compile(r"\{([^{}]*)\}")
_PATTERN: Final = re.compile(r"https?://[^\s\"'<>\\`]+", re.ASCII)
_KNOWN: Final = ("instance", "host", "node")


def check_page_url(text: str) -> None:
    """Raises ValueError for a pattern that is not an address with known placeholders."""
    unknown = [name for name in _PLACE.findall(text) if name not in _KNOWN]
    plain = _PLACE.sub("x", text)
    if _PATTERN.fullmatch(plain) is None or "{" in plain or "}" in plain or unknown:
        raise ValueError(
            f"invalid address {text!r}: use http:// or https:// with {{instance}}, {{host}} or {{node}}, "
            "such as http://{host}:9460/"
        )


def host_of(instance: str) -> str:
    """The instance without its port."""
    found = _INSTANCE.fullmatch(instance)
    return found[1] if found else instance


def page_address(pattern: str, instance: str, node: str) -> str | None:
    """None where a label that the pattern needs is not a host."""
    values = {"instance": instance, "host": host_of(instance), "node": node}
    needed = _PLACE.findall(pattern)
    if any(_INSTANCE.fullmatch(values[name]) is None for name in needed):
        return None
    return _PLACE.sub(lambda found: values[found[1]], pattern)
