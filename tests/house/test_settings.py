"""Every setting is read: a key that is documented but has no effect misleads the operator."""

import ast
import dataclasses
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpucommons.config.load import free_sections
from gpucommons.config.settings import Settings

SOURCES = Path(__file__).resolve().parents[2] / "src" / "gpucommons"
DECLARATIONS = (SOURCES / "config" / "settings.py", SOURCES / "config" / "stack.py")


@dataclasses.dataclass(frozen=True)
class Scope:
    """A function, or a whole file: the names that it uses, the attributes, and the attributes given to getattr."""

    names: set[str] = dataclasses.field(default_factory=set)
    attributes: set[str] = dataclasses.field(default_factory=set)
    dynamic: set[str] = dataclasses.field(default_factory=set)

    def add(self, inner: "Scope") -> None:
        self.names.update(inner.names)
        self.attributes.update(inner.attributes)
        self.dynamic.update(inner.dynamic)


def sections() -> Iterator[tuple[str, type]]:
    for section, hint in typing.get_type_hints(Settings).items():
        if typing.get_origin(hint) is not Mapping:
            yield section, hint
    yield from free_sections()


def fill(scope: Scope, node: ast.AST, functions: list[Scope]) -> None:
    """Adds what `node` uses to its scope, and each function inside of it to `functions`. Visits each node once."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef():
                function = Scope()
                functions.append(function)
                fill(function, child, functions)
                scope.add(function)
                continue
            case ast.ImportFrom():
                scope.names.update(alias.name for alias in child.names)
            case ast.Name():
                scope.names.add(child.id)
            case ast.Attribute():
                scope.attributes.add(child.attr)
            case ast.Call(func=ast.Name(id="getattr"), args=[ast.Attribute() as given, *_]):
                scope.dynamic.add(given.attr)
            case ast.Constant() | ast.Load() | ast.Store():
                continue
        fill(scope, child, functions)


def unread(sources: list[tuple[Path, str]]) -> set[str]:
    """Keys that no function reads which uses their section, nor any file of a room that names the section's class."""
    files, functions = [], list[Scope]()
    for path, source in sources:
        scope = Scope()
        fill(scope, ast.parse(source), functions)
        files.append((path.parent, scope))
    found: set[str] = set()
    for section, section_type in sections():
        if any(section in scope.dynamic for scope in functions):
            continue
        users = [scope.attributes for scope in functions if section in scope.attributes]
        rooms = {room for room, scope in files if section_type.__name__ in scope.names}
        users += [scope.attributes for room, scope in files if room in rooms]
        read = set().union(*users)
        found |= {f"{section}.{field.name}" for field in dataclasses.fields(section_type) if field.name not in read}
    return found


def test_every_setting_is_read() -> None:
    readers = [(path, path.read_text()) for path in SOURCES.rglob("*.py") if path not in DECLARATIONS]
    assert unread(readers) == set()


def test_the_check_finds_a_setting_that_is_not_read() -> None:
    code = "def f(settings):\n    return settings.log.format, getattr(settings.listeners, 'node')\n"
    found = unread([(Path("room/file.py"), code)])
    assert {"log.level", "sampling.interval_s"} <= found
    assert "log.format" not in found
    assert not any(key.startswith("listeners.") for key in found)
