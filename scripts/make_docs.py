"""Writes the generated pages of docs/. A test compares them with the committed pages."""

from pathlib import Path

from gpucommons.config.reference import configuration_page
from gpucommons.faces.dialects.all import DIALECTS, metrics_page
from gpucommons.faces.web.routes.pages import glossary_document

PAGES = {
    "metrics.md": lambda: metrics_page(DIALECTS),
    "configuration.md": configuration_page,
    "glossary.md": glossary_document,
}

if __name__ == "__main__":
    docs = Path(__file__).resolve().parents[1] / "docs"
    for name, page in PAGES.items():
        (docs / name).write_text(page())
        print(f"docs/{name}")
