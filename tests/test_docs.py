"""The generated pages of docs/ are up to date, and the settings of an example are valid."""

import re
from pathlib import Path

from gpucommons.agent.idle.channels import check_idle, idle_channels
from gpucommons.agent.leases.leasing import check_lease_quotas
from gpucommons.agent.sharing.rules import check_rules, program_rules
from gpucommons.agent.sharing.settings import check_scheduler
from gpucommons.config.load import load
from gpucommons.config.reference import configuration_page
from gpucommons.config.settings import Settings
from gpucommons.faces.dialects.all import DIALECTS, metrics_page
from gpucommons.faces.documents.openapi import index
from gpucommons.faces.web.routes.pages import glossary_document
from gpucommons.model.words import SharingClass

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_settings_on_the_page_about_idle_holders_are_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (DOCS / "idle.md").read_text(), re.DOTALL)
    file = tmp_path / "gpucommons.toml"
    file.write_text(block)
    settings = load(file, {}, {}).settings
    check_idle(settings)
    assert [channel.name for channel in idle_channels(settings)] == ["email", "webhook"]
    defaults = Settings().idle
    assert settings.idle == defaults, "the page shows the defaults"


def test_metrics_page_is_current() -> None:
    assert (DOCS / "metrics.md").read_text() == metrics_page(DIALECTS), "run: make docs"


def test_configuration_page_is_current() -> None:
    assert (DOCS / "configuration.md").read_text() == configuration_page(), "run: make docs"


def test_glossary_is_current() -> None:
    assert (DOCS / "glossary.md").read_text() == glossary_document(), "run: make docs"


def test_the_settings_on_the_page_about_sharing_are_valid(tmp_path: Path) -> None:
    """An indented block that begins with a section is TOML."""
    page = (DOCS / "sharing.md").read_text()
    blocks = re.findall(r"(?:^    \[\w+\]\n(?:^    .+\n)+)", page, re.MULTILINE)
    assert len(blocks) == 3
    classes, settings = (_settings_of(text, tmp_path) for text in (blocks[0], "".join(blocks[1:])))
    assert settings.scheduler.share_programs == "all"
    rules = {rule.name: rule for rule in program_rules(settings)}
    assert rules.keys() == {"students", "course", "serving"}
    assert rules["students"].quota.core_percent == 25
    assert not rules["serving"].share
    assert [rule.quota.sharing_class for rule in program_rules(classes)] == [
        SharingClass.LATENCY,
        SharingClass.BACKGROUND,
    ]


def _settings_of(indented: str, directory: Path) -> Settings:
    """Of an indented block, checked."""
    file = directory / "gpucommons.toml"
    file.write_text(indented.replace("\n    ", "\n").removeprefix("    "))
    settings = load(file, {}, {}).settings
    check_scheduler(settings.scheduler)
    check_rules(settings)
    return settings


def test_the_settings_of_every_recipe_are_valid(tmp_path: Path) -> None:
    blocks = [
        (page.name, block)
        for page in sorted((DOCS / "recipes").glob("*.md"))
        for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    assert {name for name, _ in blocks} >= {"five-students.md", "billing-groups.md", "slack.md", "replace-a-program.md"}
    for number, (name, block) in enumerate(blocks):
        file = tmp_path / f"{number}.toml"
        file.write_text(block)
        settings = load(file, {}, {}).settings
        assert settings != Settings(), name
        check_lease_quotas(settings)
        check_idle(settings)


def test_five_students_may_share_a_gpu(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (DOCS / "recipes/five-students.md").read_text(), re.DOTALL)
    file = tmp_path / "gpucommons.toml"
    file.write_text(block)
    settings = load(file, {}, {}).settings
    check_lease_quotas(settings)
    assert settings.leases.share_limit == 5
    (quota,) = settings.lease_quotas.values()
    assert 5 * (quota.sm_percent or 100) <= 100


def test_the_page_about_the_api_has_every_path_and_parameter() -> None:
    page = (DOCS / "page.md").read_text()
    rows = dict(re.findall(r"^\| `(/api/v1/[^`]+)` \|([^|]*)\|", page, re.MULTILINE))
    resources = index("x")["resources"]
    assert isinstance(resources, dict)
    described = {path: set(one["parameters"]) for path, one in resources.items()}
    del described["/api/v1/"], described["/api/v1/openapi.json"]
    assert {path: set(re.findall(r"`(\w+)`", cell)) for path, cell in rows.items()} == described
