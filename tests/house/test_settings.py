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

    names: set[str]
    attributes: set[str]
    dynamic: set[str]


def sections() -> Iterator[tuple[str, type]]:
    for section, hint in typing.get_type_hints(Settings).items():
        if typing.get_origin(hint) is not Mapping:
            yield section, hint
    yield from free_sections()


def scope_of(tree: ast.AST) -> Scope:
    nodes = list(ast.walk(tree))
    imported = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return Scope(
        imported | {node.id for node in nodes if isinstance(node, ast.Name)},
        {node.attr for node in nodes if isinstance(node, ast.Attribute)},
        {
            call.args[0].attr
            for call in calls
            if isinstance(call.func, ast.Name) and call.func.id == "getattr" and isinstance(call.args[0], ast.Attribute)
        },
    )


def unread(sources: list[tuple[Path, str]]) -> set[str]:
    """Keys that no function reads which uses their section, nor any file of a room that names the section's class."""
    trees = [ast.parse(source) for _, source in sources]
    files = [(path.parent, scope_of(tree)) for (path, _), tree in zip(sources, trees, strict=True)]
    functions = [scope_of(node) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
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
