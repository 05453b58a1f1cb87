"""Imports point one way: a package may import only what stands below it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "src" / "gpucommons"

BELOW: dict[str, set[str]] = {
    "base": set(),
    "model": {"base"},
    "rules": {"base", "model"},
    "config": {"base", "model"},
    "exposition": {"base", "model"},
    "sources": {"base", "model", "rules"},
    "attribution": {"base", "model", "rules"},
    "holding": {"base", "model", "rules", "attribution"},
    "scheduler": {"base", "model", "rules", "config"},
    "ledger": {"base", "model", "rules"},
    "simulation": {"base", "model", "rules", "sources", "attribution", "holding"},
    "sampling": {"base", "model", "rules", "sources", "attribution", "holding", "scheduler", "ledger"},
    "dialects": {"base", "model", "rules", "exposition"},
    "faces": {"base", "model", "rules"},
    "web": {"base", "model", "rules", "config", "exposition", "dialects", "faces", "sampling"},
    "stack": {"base", "model", "config", "exposition", "dialects", "faces"},
    "stress": {"base"},
    "pauser": {"base", "model"},
}
TOP = {"cli", "agent", "__main__", "__init__"}


def imports_of(path: Path) -> set[str]:
    """The packages of ours that one file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {n.split(".")[1] for n in names if n.startswith("gpucommons.")}
    return found


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if package in TOP:
        return
    assert package in BELOW, f"{package} has no place in the house: give it one in this test"
    wrong = imports_of(path) - BELOW[package] - {package}
    assert not wrong, f"{path.name} imports {sorted(wrong)}, which {package} must not know"


def test_the_check_sees_a_wrong_import(tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text("from gpucommons.web.http.server import x\nimport gpucommons.cli.main\n")
    assert imports_of(probe) == {"web", "cli"}


def test_nothing_relative() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"
