"""Query parameters: one declaration to check, explain and document each. Pure."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpucommons.base.periods import parse_since
from gpucommons.base.text import parse_decimal
from gpucommons.faces.documents.schema import Schema
from gpucommons.model.events import read_type

_LONGEST_NAME = 64

Value = str | int | float
Query = Sequence[tuple[str, str]]


class BadParameter(ValueError):
    """An invalid query parameter: its name, and one line that says what is expected."""

    def __init__(self, parameter: str, line: str) -> None:
        super().__init__(line)
        self.parameter = parameter[:_LONGEST_NAME]

    @property
    def line(self) -> str:
        return f"parameter {self.parameter!r}: {self}"


class Parameter(NamedTuple):
    """`read` parses the text, or raises a ValueError that says what is expected."""

    name: str
    summary: str
    schema: Schema
    read: Callable[[str], Value]


def word(name: str, summary: str, words: Iterable[str]) -> Parameter:
    allowed = list(words)

    def read(text: str) -> Value:
        if text not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}")
        return text

    return Parameter(name, summary, {"type": "string", "enum": allowed}, read)


def whole(name: str, summary: str, least: int, most: int) -> Parameter:
    def read(text: str) -> Value:
        number = parse_decimal(text)
        if number is None or not least <= number <= most:
            raise ValueError(f"expected a whole number from {least} to {most}")
        return number

    return Parameter(name, summary, {"type": "integer", "minimum": least, "maximum": most}, read)


def text(name: str, summary: str, longest: int = 256) -> Parameter:
    def read(given: str) -> Value:
        if not 0 < len(given) <= longest:
            raise ValueError(f"expected a string of 1 to {longest} characters")
        return given

    return Parameter(name, summary, {"type": "string", "minLength": 1, "maxLength": longest}, read)


def event_type(name: str, summary: str) -> Parameter:
    return Parameter(name, summary, {"type": "string", "minLength": 1, "maxLength": 64}, read_type)


def moment(name: str, summary: str) -> Parameter:
    """An age or a date, in the time zone of the agent; read as Unix time."""

    def read(given: str) -> Value:
        return parse_since(given, time.time(), None)

    return Parameter(name, summary, {"type": "string", "minLength": 1, "maxLength": 64}, read)


def read_query(query: Query, declared: Sequence[Parameter]) -> Mapping[str, Value]:
    """The given values. Raises BadParameter for a parameter that is unknown, repeated or invalid."""
    by_name = {parameter.name: parameter for parameter in declared}
    values: dict[str, Value] = {}
    for name, given in query:
        parameter = by_name.get(name)
        if parameter is None:
            advice = f"use {', '.join(by_name)}" if by_name else "this path has no parameters"
            raise BadParameter(name, f"unknown parameter; {advice}")
        if name in values:
            raise BadParameter(name, "given more than once")
        try:
            values[name] = parameter.read(given)
        except ValueError as error:
            raise BadParameter(name, str(error)) from None
    return values
