"""Each part of the scheduler's state is changed by one module: the table of scheduler/policy/state.py."""

import ast
from collections.abc import Iterator
from pathlib import Path

from gpucommons.scheduler.policy import state
from scripts.house_numbers import REPOSITORY

SCHEDULER = REPOSITORY / "src" / "gpucommons" / "scheduler"
# The attribute that holds a part, its fields, and the module that changes them.
PARTS = (
    ("memory", {*state.ClientMemory.__slots__, *state.MemorySums.__slots__}, "transitions.py"),
    ("turn", {*state.ClientTurn.__slots__}, "transitions.py"),
    ("turns", {*state.GpuTurns.__slots__}, "transitions.py"),
    ("client", {"standing"}, "transitions.py"),
    ("service", {*state.Service.__slots__}, "attained.py"),
    ("order", {*state.ServiceOrder.__slots__}, "attained.py"),
    ("line", {*state.OwnerLine.__slots__}, "attained.py"),
    ("quota", {*state.Quota.__slots__}, "core_limits.py"),
    ("limits", {*state.CoreLimits.__slots__}, "core_limits.py"),
    ("phases", {*state.Phases.__slots__}, "phasing.py"),
    ("gpu", {"deadline_s", "fast_path", "next_client", "biggest_waiter"}, "evaluation.py"),
)


def changes(file: Path) -> Iterator[tuple[str, str]]:
    """The part and field of each assignment and deletion, such as `gpu.order.front = client`."""
    for node in ast.walk(ast.parse(file.read_text())):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            for inner in ast.walk(target):
                # The field itself is changed, or an item of it.
                field = inner.value if isinstance(inner, ast.Subscript) else inner
                if isinstance(field, ast.Attribute) and not (field is inner and isinstance(field.ctx, ast.Load)):
                    yield name_of(field.value), field.attr


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def test_each_part_is_changed_by_one_module() -> None:
    changed = {(file.name, *change) for file in SCHEDULER.rglob("*.py") for change in changes(file)}
    for part, fields, writer in PARTS:
        files = {file for file, holder, field in changed if holder == part and field in fields}
        assert files == {writer}, f"{part} is changed in {files}; {writer} alone changes it"
