"""The page's pure functions, with the test runner of node: `functions/*.test.js`. No browser is needed."""

import itertools
import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import gpucommons.faces.web
from gpucommons.faces.documents.delta import delta
from needs import needs_program

STATIC = Path(gpucommons.faces.web.__file__).parent / "static"
FUNCTIONS = Path(__file__).parent / "functions"


def random_document(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    keys = ["a", "b", "c", "__proto__", "constructor", ""]

    def value() -> Any:
        if depth < 3 and chance.random() < 0.5:
            return random_document(chance, depth + 1)
        return chance.choice([None, True, 0, 1.5, "x", "<b>", [], [1, [2]]])

    return {key: value() for key in chance.sample(keys, chance.randrange(len(keys)))}


def test_the_functions_of_the_page(tmp_path: Path) -> None:
    needs_program("node")
    shutil.copytree(FUNCTIONS, tmp_path, dirs_exist_ok=True)
    shutil.copytree(STATIC, tmp_path / "static")
    # The browser takes every file for a module; node, only in such a package.
    (tmp_path / "package.json").write_text('{"type": "module"}')
    chance = random.Random(8)
    documents = [random_document(chance) for _ in range(400)]
    pairs = [(before, after, delta(before, after)) for before, after in itertools.pairwise(documents)]
    assert sum(json.dumps(changes).count("[]") for _, _, changes in pairs) > 50, "some keys are removed"
    (tmp_path / "deltas.json").write_text(json.dumps(pairs))
    done = subprocess.run(["node", "--test", "."], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"^# pass (\d+)$", done.stdout, re.MULTILINE)
    assert passed, done.stdout
    assert int(passed[1]) >= 50, "every file was found"
