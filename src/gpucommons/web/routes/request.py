"""The part of an HTTP request that an endpoint reads. Values only."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpucommons.rules.privacy import SEES_ALL, Viewer


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    accept: str = ""
    accept_encoding: str = ""
    if_none_match: str = ""
    query: Sequence[tuple[str, str]] = ()
    viewer: Viewer = SEES_ALL
