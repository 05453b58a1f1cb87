"""A configuration file with its text, so that an error can name the line of a key. The only I/O is reading the file."""

import contextlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucommons.config.option import ConfigError

_TOML_LINE = re.compile(r"\bat line ([0-9]+)\b")


@dataclass(frozen=True, slots=True)
class TomlFile:
    """Without a path there is no file, and the document is empty."""

    path: Path | None = None
    text: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)

    @contextlib.contextmanager
    def at(self, *key: str) -> Iterator[None]:
        """An error about this key, given by its parts, gets the name of the file and the line of the key."""
        try:
            yield
        except ConfigError as error:
            line = line_of(self.text, key)
            where = self.path if line is None else f"{self.path}: line {line}"
            raise ConfigError(f"{where}: {error}", line) from error


def read_toml(path: Path) -> TomlFile:
    try:
        text = path.read_text("utf-8")
        return TomlFile(path, text, tomllib.loads(text))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a readable file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}; save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        line = _TOML_LINE.search(str(error))
        message = f"{path}: not valid TOML: {error}; correct that line"
        raise ConfigError(message, int(line[1]) if line else None) from error
    except (ValueError, RecursionError) as error:
        # An integer of thousands of digits, or thousands of brackets.
        raise ConfigError(f"{path}: cannot be read as TOML: {error}; shorten that value") from error


def line_of(text: str, key: tuple[str, ...]) -> int | None:
    """The line that sets a key or begins a table, of a valid text; None for a value of several lines.

    The parser decides: the text has the key up to this line, and not up to the one before. A name in a comment or in a
    string is not taken for the key.
    """
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if key[-1] in line and _has(lines[:number], key):
            return number if _has(lines[: number - 1], key) is False else None
    return None


def _has(lines: list[str], key: tuple[str, ...]) -> bool | None:
    """None where the text ends inside a value."""
    try:
        table: Any = tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError:
        return None
    for part in key:
        if not isinstance(table, dict) or part not in table:
            return False
        table = table[part]
    return True
