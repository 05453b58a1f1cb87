"""The difference of two JSON documents as a small document, and its application. Pure.

In a delta, an object is a change inside that object, a list of one is the new value, and an empty list is a removal.
A list in a document is a value: a changed list is sent whole.
"""

from collections.abc import Mapping

from gpucommons.faces.documents.values import Json

Delta = dict[str, Json]


def delta(before: Mapping[str, Json], after: Mapping[str, Json]) -> Delta:
    """Empty if nothing changed."""
    changes: Delta = {}
    for key, value in after.items():
        if key not in before:
            changes[key] = [value]
            continue
        previous = before[key]
        if type(value) is dict and type(previous) is dict:
            inside = delta(previous, value)
            if inside:
                changes[key] = inside
        elif not _same(previous, value):
            changes[key] = [value]
    for key in before:
        if key not in after:
            changes[key] = []
    return changes


def _same(previous: Json, value: Json) -> bool:
    """True == 1 and 1 == 1.0 in Python, but not in JSON."""
    if type(previous) is not type(value):
        return False
    if type(previous) is list and type(value) is list:
        return len(previous) == len(value) and all(map(_same, previous, value))
    if type(previous) is dict and type(value) is dict:
        return not delta(previous, value)
    return previous == value


def apply(document: Mapping[str, Json], changes: Mapping[str, Json]) -> dict[str, Json]:
    """The document after the delta; the given one is not changed."""
    result = dict(document)
    for key, change in changes.items():
        if isinstance(change, Mapping):
            inside = result[key]
            assert isinstance(inside, Mapping)
            result[key] = apply(inside, change)
        elif isinstance(change, list):
            if change:
                result[key] = change[0]
            else:
                result.pop(key, None)
    return result
