"""One name for one thing: each class name is defined once, and imports are absolute."""

import re
from collections import defaultdict

from scripts.house_numbers import REPOSITORY, SourceTree


def test_public_class_names_are_unique(tree: SourceTree) -> None:
    definitions: dict[str, list[str]] = defaultdict(list)
    for module, path in tree.files.items():
        for name in re.findall(r"^\s*class ([A-Za-z]\w*)[(:\[]", path.read_text(), re.MULTILINE):
            definitions[name].append(module)
    repeated = {name: modules for name, modules in definitions.items() if len(modules) > 1}
    assert repeated == {}


def test_imports_are_absolute(tree: SourceTree) -> None:
    for path in tree.files.values():
        relative = re.search(r"^\s*from \.", path.read_text(), re.MULTILINE)
        assert not relative, f"{path.relative_to(REPOSITORY)} has a relative import"
