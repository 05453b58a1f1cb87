"""Settings from defaults, one TOML file, the environment and flags, in rising precedence.

A configuration file is kept with its text, so that an error can name the line of a key. The only I/O is reading it.
"""

import contextlib
import dataclasses
import difflib
import json
import keyword
import math
import re
import sys
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucommons.config.option import ConfigError, Mistakes
from gpucommons.config.scheduler import max_runtime_lines
from gpucommons.config.settings import Settings

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
            raise ConfigError(f"{where}: {error}", line, key[0]) from error


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


ENVIRONMENT_PREFIX = "GPUCOMMONS_"
# Kubernetes sets these in every pod that runs next to a Service named gpucommons. They are not settings.
_KUBERNETES_LINK = re.compile(r"GPUCOMMONS_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)")
_BOOLEANS = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off"), False)}
# Old key: the key that replaced it, and how to set that.
_REPLACED = {
    "dcgm.older_hostname": (
        "dcgm.hostname_label",
        "use 'both' for Hostname and hostname, 'hostname' for hostname alone",
    ),
}
_TYPE_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


def _variable(path: str) -> str:
    return f"{ENVIRONMENT_PREFIX}{path.replace('.', '_')}".upper()


@dataclass(frozen=True, slots=True)
class Key:
    """One configuration key, `section.name`. `guards` holds what `option` was given."""

    section: str
    name: str
    type: type
    default: Any
    guards: Mapping[str, Any]

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        return _variable(self.path)


@dataclass(frozen=True, slots=True)
class Flag:
    """A value from the command line and the name of its flag."""

    value: Any
    name: str


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """`origins` is by path: `section.name`, or `section.row.name` in a free section.

    `warnings` are lines for the log about values that are valid but perhaps not intended.
    """

    settings: Settings
    origins: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def keys() -> Iterator[Key]:
    """Every key in the order of the sections, without the rows of free sections."""
    for section, section_type in _sections():
        yield from keys_of(section, section_type)


def free_sections() -> Iterator[tuple[str, type]]:
    """Sections in which the user chooses the names, such as [quotas]: each name holds a table of that type."""
    for section, hint in typing.get_type_hints(Settings).items():
        if typing.get_origin(hint) is Mapping:
            yield section, typing.get_args(hint)[1]


def keys_of(section: str, section_type: type) -> Iterator[Key]:
    types = typing.get_type_hints(section_type)
    for item in dataclasses.fields(section_type):
        # A field cannot have the name of a keyword, such as class: it has an underscore after it.
        yield Key(section, item.name.rstrip("_"), types[item.name], item.default, item.metadata)


def attribute(name: str) -> str:
    """The field of a key."""
    return f"{name}_" if keyword.iskeyword(name) else name


def as_toml(value: str | float | bool) -> str:
    """A value as it is written in a file: TOML and JSON agree on strings, numbers and booleans."""
    return json.dumps(value, ensure_ascii=False)


def _sections() -> Iterator[tuple[str, type]]:
    for section, hint in typing.get_type_hints(Settings).items():
        if typing.get_origin(hint) is None:
            yield section, hint


def load(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Flag]) -> LoadedSettings:
    """Raises ConfigError, which has every mistake of a value."""
    loaded, mistakes = load_without_mistakes(file, environment, flags)
    mistakes.raise_any()
    return loaded


def load_without_mistakes(
    file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Flag]
) -> tuple[LoadedSettings, Mistakes]:
    """What is right: a key with a mistake has its default, and a row of a free section with one is left out.

    Raises ConfigError where the file cannot be read.
    """
    by_path = {key.path: key for key in keys()}
    values = {path: key.default for path, key in by_path.items()}
    origins = dict.fromkeys(by_path, "default")
    toml = TomlFile() if file is None else read_toml(file)
    mistakes = Mistakes()
    free = _free_from_file(toml, mistakes)
    layers = [_from_file(toml, by_path, mistakes)]
    with mistakes.collect():
        layers.append(_from_environment(environment, by_path))
    with mistakes.collect():
        layers.append(_from_flags(flags, by_path))
    for layer in layers:
        for path, (value, origin) in layer.items():
            values[path], origins[path] = value, origin
    sections: dict[str, Any] = {
        section: section_type(**{key.name: values[key.path] for key in keys_of(section, section_type)})
        for section, section_type in _sections()
    }
    for section, rows in free.items():
        sections[section] = rows
        for name, row in rows.items():
            for key in keys_of(f"{section}.{name}", type(row)):
                origins[key.path] = f"file {file}" if key.name in toml.document[section][name] else "default"
    warnings = (*_alias_conflicts(environment, by_path.values()), *max_runtime_lines(environment))
    return LoadedSettings(Settings(**sections), origins, warnings), mistakes


_Layer = dict[str, tuple[Any, str]]


def _from_file(toml: TomlFile, by_path: Mapping[str, Key], mistakes: Mistakes) -> _Layer:
    layer: _Layer = {}
    free = dict(free_sections())
    for section, table in toml.document.items():
        if not isinstance(table, dict):
            with mistakes.collect(), toml.at(section):
                raise ConfigError(f"'{section}' is outside of any [section]; move it below one")
            continue
        for name, value in table.items() if section not in free else ():
            with mistakes.collect(), toml.at(section, name):
                key = _find_key(f"{section}.{name}", by_path)
                layer[key.path] = (_check_value(key, value, f"'{key.path}'"), f"file {toml.path}")
    return layer


def _find_key(path: str, by_path: Mapping[str, Key]) -> Key:
    key = by_path.get(path)
    if key is None and (replaced := _REPLACED.get(path)):
        raise ConfigError(f"'{path}' was replaced by '{replaced[0]}'; {replaced[1]}")
    if key is None:
        hint = _nearest(path, by_path, "docs/configuration.md lists the keys")
        raise ConfigError(f"unknown key '{path}'; {hint}")
    return key


def _free_from_file(toml: TomlFile, mistakes: Mistakes) -> dict[str, dict[str, Any]]:
    """The rows of every free section, each checked like a section."""
    sections: dict[str, dict[str, Any]] = {}
    for section, row_type in free_sections():
        table = toml.document.get(section, {})
        sections[section] = {}
        for name, row in table.items() if isinstance(table, dict) else ():
            where = f"'{section}.{name}'"
            by_name = {key.name: key for key in keys_of(f"{section}.{name}", row_type)}
            if not isinstance(row, dict) or not row:
                with mistakes.collect(), toml.at(section, name):
                    raise ConfigError(f"{where}: expected a table with {', '.join(by_name)}, got {row!r}")
                continue
            values = {}
            for key, value in row.items():
                with mistakes.collect(), toml.at(section, name, key):
                    if key not in by_name:
                        hint = _nearest(key, by_name, f"the keys are {', '.join(by_name)}")
                        raise ConfigError(f"{where}: unknown key '{key}'; {hint}")
                    values[key] = _check_value(by_name[key], value, f"{where}: '{key}'")
            if len(values) == len(row):
                sections[section][name] = row_type(**{attribute(key): value for key, value in values.items()})
    return sections


def _from_environment(environment: Mapping[str, str], by_path: Mapping[str, Key]) -> _Layer:
    layer: _Layer = {}
    by_variable = {key.variable: key for key in by_path.values()}
    replaced_variables = {_variable(old): (_variable(new), hint) for old, (new, hint) in _REPLACED.items()}
    for key in by_path.values():
        given = {alias: environment[alias] for alias in key.guards["aliases"] if alias in environment}
        if given:
            name, text = _from_aliases(key, given)
            layer[key.path] = (_from_text(key, text, name), f"environment {name}")
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or _KUBERNETES_LINK.fullmatch(variable):
            continue
        key_of_variable = by_variable.get(variable)
        if key_of_variable is None and (replaced := replaced_variables.get(variable)):
            raise ConfigError(f"environment: {variable} was replaced by {replaced[0]}; {replaced[1]}")
        if key_of_variable is None:
            raise ConfigError(
                f"environment: unknown variable {variable}; {_nearest(variable, by_variable, 'unset it')}"
            )
        layer[key_of_variable.path] = (_from_text(key_of_variable, text, variable), f"environment {variable}")
    return layer


def _alias_conflicts(environment: Mapping[str, str], all_keys: Iterable[Key]) -> Iterator[str]:
    """One line for each key whose aliases have different values."""
    for key in all_keys:
        if key.guards["join_aliases"] is not None:
            continue
        given = [alias for alias in key.guards["aliases"] if alias in environment]
        if len({environment[alias] for alias in given}) > 1:
            values = " and ".join(f"{alias}={environment[alias]}" for alias in given)
            in_force = key.variable if key.variable in environment else given[-1]
            yield f"{values} differ: {in_force} is in force; unset the others"


def _from_aliases(key: Key, given: Mapping[str, str]) -> tuple[str, str]:
    """The name and the text of the alias in force, or of all aliases where they are combined."""
    join = key.guards["join_aliases"]
    if join is not None:
        return " and ".join(given), join(given)
    return list(given.items())[-1]


def _from_flags(flags: Mapping[str, Flag], by_path: Mapping[str, Key]) -> _Layer:
    return {
        path: (_check_value(by_path[path], flag.value, flag.name), f"flag {flag.name}") for path, flag in flags.items()
    }


def _from_text(key: Key, text: str, where: str) -> Any:
    """Convert an environment variable to the type of its key."""
    if key.type is bool:
        if text.strip().lower() not in _BOOLEANS:
            raise ConfigError(f"{where}: expected true or false, got {text!r}")
        return _BOOLEANS[text.strip().lower()]
    if key.type is str:
        return _check_value(key, text, where)
    try:
        return _check_value(key, key.type(text), where)
    except ValueError:
        raise ConfigError(f"{where}: expected {_TYPE_NAMES[key.type]}, got {text!r}") from None


def _check_value(key: Key, value: Any, where: str) -> Any:
    if key.type is float and type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            raise ConfigError(f"{where}: expected a number below {sys.float_info.max:g}") from None
    if key.guards["as_text"] is not None:
        try:
            value = key.guards["as_text"](value)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
    if type(value) is bool and "true" in key.guards["choices"]:
        # A switch with a third position, such as auto.
        value = "true" if value else "false"
    if type(value) is not key.type:
        raise ConfigError(f"{where}: expected {_TYPE_NAMES[key.type]}, got {value!r}")
    guards = key.guards
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: expected a finite number, got {value!r}")
    if guards["minimum"] is not None and value < guards["minimum"]:
        raise ConfigError(f"{where}: expected at least {guards['minimum']:g}, got {value!r}")
    if guards["maximum"] is not None and value > guards["maximum"]:
        raise ConfigError(f"{where}: expected at most {guards['maximum']:g}, got {value!r}")
    if guards["choices"] and value not in guards["choices"]:
        raise ConfigError(f"{where}: expected one of {', '.join(guards['choices'])}, got {value!r}")
    if guards["check"] is not None and value:
        try:
            guards["check"](value)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
    return value


def _nearest(unknown: str, names: Iterable[str], otherwise: str) -> str:
    near = difflib.get_close_matches(unknown, names, 1)
    return f"did you mean '{near[0]}'?" if near else otherwise
