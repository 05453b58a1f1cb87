"""The rooms of the house: which package imports which. A room imports only rooms that are listed above it."""

from pathlib import Path

import pytest

from scripts.house_numbers import SourceTree, circles, imports_of

# The table equals the imports: a permission that no import uses fails as well.
ROOMS: dict[str, set[str]] = {
    "": set(),
    "base": set(),
    "model": {"base"},
    "rules": {"base", "model"},
    "config": {"base"},
    "pauser": {"base", "model"},
    "leases": {"base", "model"},
    "leases.policy": {"base", "config", "model"},
    "leases.service": {"base", "config", "leases", "leases.policy", "model"},
    "leases.mps": {"base", "leases", "leases.service", "model"},
    "sources": {"base", "model"},
    "sources.host": {"base", "model", "sources"},
    "sources.people": {"base", "model", "sources"},
    "sources.ds01": {"base", "model", "sources"},
    "sources.containers": {"base", "model", "sources", "sources.host"},
    "sources.kubernetes": {"base", "model", "sources"},
    "sources.nvml": {"base", "model", "sources", "sources.host"},
    "scheduler": set(),
    "scheduler.protocol": {"base", "config"},
    "scheduler.corun": {"model"},
    "scheduler.policy": {"base", "config", "model", "scheduler.corun", "scheduler.protocol"},
    "scheduler.programs": {"base", "model", "rules", "scheduler.policy"},
    "scheduler.parking": {"base", "config", "model", "pauser", "rules", "scheduler.programs"},
    "scheduler.service": {
        "base",
        "config",
        "model",
        "pauser",
        "rules",
        "scheduler.corun",
        "scheduler.parking",
        "scheduler.policy",
        "scheduler.programs",
        "scheduler.protocol",
    },
    "slurm": {"base", "model", "sources", "sources.containers"},
    "kubernetes": {"base", "model", "sources", "sources.kubernetes"},
    "idle": {"base", "config", "model"},
    "ledger": {"base", "model"},
    "owners": {"model", "rules"},
    "simulation": {
        "leases",
        "leases.policy",
        "leases.service",
        "model",
        "pauser",
        "sources",
        "sources.host",
    },
    "faces": set(),
    "faces.exposition": {"model"},
    "faces.dialects": {"faces.exposition", "model", "rules"},
    "faces.history": {"base", "model", "rules"},
    "faces.fleet": {"base", "model", "rules"},
    "faces.documents": {"base", "faces.history", "model", "rules"},
    "faces.web": {"base", "faces.documents", "faces.fleet", "faces.history", "model", "rules"},
    "stack": {"base", "config"},
}
# These put the parts together: they may import every room above them.
ASSEMBLY = ("agent", "cli")


def test_every_room_imports_what_the_table_says(tree: SourceTree) -> None:
    found = {room: imported for room, imported in tree.rooms().items() if room.split(".")[0] not in ASSEMBLY}
    assert found == ROOMS


def test_rooms_import_only_rooms_above_them(tree: SourceTree) -> None:
    order = list(ROOMS)
    wrong = [
        f"{room} imports {imported}"
        for room, rooms in tree.rooms().items()
        for imported in rooms
        if room in ROOMS and (imported not in ROOMS or order.index(imported) >= order.index(room))
    ]
    wrong += [f"{room} imports cli" for room, rooms in tree.rooms().items() if "cli" in rooms and room != "cli"]
    assert not wrong


def test_no_circle_of_modules(tree: SourceTree) -> None:
    assert circles(tree.imports) == []


def test_no_circle_of_rooms(tree: SourceTree) -> None:
    assert circles(tree.rooms()) == []


def test_packages_are_not_empty(tree: SourceTree) -> None:
    for module, path in tree.files.items():
        if path.name == "__init__.py":
            assert any(each.startswith(f"{module}.") for each in tree.files), f"{path} is the package's only file"


def test_imports_inside_functions_and_of_packages_are_seen(tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(
        "from gpucommons.faces.web import page\nimport gpucommons.cli.main\n"
        "def late():\n    from gpucommons.model.gpu import Gpu\n"
    )
    known = {"gpucommons.faces.web", "gpucommons.faces.web.page", "gpucommons.cli.main", "gpucommons.model.gpu"}
    assert imports_of(probe, known) == known - {"gpucommons.faces.web"}


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": "b", "b": "c", "c": ""}, []),
        ({"a": "b", "b": "ca", "c": ""}, [["a", "b"]]),
        ({"a": "bc", "b": "a", "c": "d", "d": "ec", "e": ""}, [["a", "b"], ["c", "d"]]),
        ({"a": "b", "b": "c", "c": "a", "d": "a"}, [["a", "b", "c"]]),
    ],
)
def test_circles_are_found(graph: dict[str, str], expected: list[list[str]]) -> None:
    assert sorted(circles(graph)) == expected
