"""The page's scripts. `make lint` checks their format; the formatter leaves markup in templates as it is written."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MAX_COLUMNS = 140


def test_no_line_of_a_script_is_too_long() -> None:
    folders = (REPOSITORY / "src/gpucommons/faces/web/static", REPOSITORY / "tests/page")
    files = [file for folder in folders for file in folder.rglob("*.js") if "vendor" not in file.parts]
    assert len(files) > 20
    too_long = [
        f"{file.relative_to(REPOSITORY)}:{number}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > MAX_COLUMNS
    ]
    assert too_long == []
