"""Prints the size of the source tree and its imports: `python scripts/house_numbers.py [COMMIT]`.

The tests of tests/house read the same import graph. A room is a package, or a sub-package of a package.
"""

import ast
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
# `agent` and `cli` put the parts together and import most of them; every room may import `base`.
_ASSEMBLY, _GROUND_FLOOR = {"agent", "cli"}, "base"


@dataclass(frozen=True, slots=True)
class SourceTree:
    """Every module of gpucommons, with its file and the modules of gpucommons that it imports."""

    files: Mapping[str, Path]
    imports: Mapping[str, frozenset[str]]

    def room(self, module: str) -> str:
        """`sources.host` for gpucommons.sources.host.cpu, `model` for gpucommons.model.gpu."""
        if module == "gpucommons.__main__":
            return "cli"
        packages = module.split(".")[1:] if self.files[module].name == "__init__.py" else module.split(".")[1:-1]
        return ".".join(packages[:2])

    def rooms(self) -> dict[str, set[str]]:
        """The rooms that each room imports."""
        found: dict[str, set[str]] = {self.room(module): set() for module in self.files}
        for module, imported in self.imports.items():
            found[self.room(module)] |= {self.room(each) for each in imported} - {self.room(module)}
        return found

    def package_imports(self) -> set[tuple[str, str]]:
        """Pairs of top-level packages of which the first imports the second."""
        pairs = {
            (importer.split(".")[0], room.split(".")[0]) for importer, rooms in self.rooms().items() for room in rooms
        }
        return {(importer, imported) for importer, imported in pairs if importer != imported}


def read_tree(source: Path = REPOSITORY / "src") -> SourceTree:
    files = {}
    for path in sorted((source / "gpucommons").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        files[".".join(parts[:-1] if path.name == "__init__.py" else parts)] = path
    return SourceTree(files, {module: imports_of(path, files) - {module} for module, path in files.items()})


def imports_of(path: Path, known: Collection[str]) -> frozenset[str]:
    """The modules among `known` that a file imports, at its top or inside a function."""
    found = set()
    for node in _statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in known else node.module for name in names}
    return frozenset(found & set(known))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Those of a module with the ones inside of them. Most of a tree is expressions, which import nothing."""
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
        inner = getattr(node, part, ())
        for statement in inner if isinstance(inner, list) else ():
            yield statement
            yield from _statements(statement)


def circles(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node, each sorted (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []

    def visit(node: str) -> Iterator[list[str]]:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for target in graph[node]:
            if target not in order:
                yield from visit(target)
            if target in stack:
                lowest[node] = min(lowest[node], lowest[target])
        if lowest[node] == order[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                yield sorted(component)

    return [circle for node in graph if node not in order for circle in visit(node)]


def numbers(tree: SourceTree) -> Iterator[tuple[str, int]]:
    arrows = tree.package_imports()
    yield "files", len(tree.files)
    yield "lines", sum(len(path.read_text().splitlines()) for path in tree.files.values())
    yield "imports between modules", sum(map(len, tree.imports.values()))
    yield "imports between modules of two packages", sum(1 for _ in _crossing(tree))
    yield "imports between packages", len(arrows)
    yield (
        "the same without base, agent and cli",
        sum(importer not in _ASSEMBLY and imported != _GROUND_FLOOR for importer, imported in arrows),
    )
    yield "circles of modules", len(circles(tree.imports))
    yield "circles of rooms", len(circles(tree.rooms()))


def _crossing(tree: SourceTree) -> Iterator[tuple[str, str]]:
    for module, imported in tree.imports.items():
        for each in imported:
            if module.split(".")[1:2] != each.split(".")[1:2]:
                yield module, each


def _tree_of_commit(commit: str, directory: Path) -> SourceTree:
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=REPOSITORY, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as content:
        content.extractall(directory, filter="data")
    return read_tree(directory / "src")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        tree = _tree_of_commit(sys.argv[1], Path(directory)) if len(sys.argv) > 1 else read_tree()
        for name, number in numbers(tree):
            print(f"{number:6}  {name}")
