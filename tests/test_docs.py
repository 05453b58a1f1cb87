"""The generated pages of docs/ are up to date."""

from pathlib import Path

from gpucommons.config.reference import configuration_page
from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.faces.dialects.reference import metrics_page

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_metrics_page_is_current() -> None:
    assert (DOCS / "metrics.md").read_text() == metrics_page(DIALECTS), "run: make docs"


def test_configuration_page_is_current() -> None:
    assert (DOCS / "configuration.md").read_text() == configuration_page(), "run: make docs"
