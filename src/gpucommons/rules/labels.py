"""What a label of a container or an annotation of a pod says. Pure."""

from collections.abc import Mapping
from typing import Final

_NO: Final = frozenset({"no", "false", "off", "0"})


def says_no(labels: Mapping[str, str], name: str) -> bool:
    return labels.get(name, "").strip().lower() in _NO
