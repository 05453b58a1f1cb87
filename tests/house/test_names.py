"""One name for one thing: each class name is defined once, and imports are absolute."""

import ast
from collections import defaultdict

from scripts.house_numbers import REPOSITORY, SourceTree


def test_public_class_names_are_unique(tree: SourceTree) -> None:
    definitions: dict[str, list[str]] = defaultdict(list)
    for module, path in tree.files.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                definitions[node.name].append(module)
    repeated = {name: modules for name, modules in definitions.items() if len(modules) > 1}
    assert repeated == {}


def test_imports_are_absolute(tree: SourceTree) -> None:
    for path in tree.files.values():
        for node in ast.walk(ast.parse(path.read_text())):
            relative = isinstance(node, ast.ImportFrom) and node.level > 0
            assert not relative, f"{path.relative_to(REPOSITORY)} has a relative import"
