"""The settings that share programs: share_programs, and the patterns of [sharing_quotas]."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from config.test_load import loaded, refused
from gpucommons.agent.sharing import client_rules
from gpucommons.config.load import load
from gpucommons.config.settings import SharingQuotaSettings
from gpucommons.scheduler.policy.quotas import QuotaRule, QuotaValues
from gpucommons.scheduler.programs.exemptions import ShareScope


@pytest.mark.parametrize("scope", ShareScope)
def test_whose_programs_are_shared(tmp_path: Path, scope: ShareScope) -> None:
    result = loaded(tmp_path, f'[scheduler]\nshare_programs = "{scope}"\n')
    assert ShareScope(result.settings.scheduler.share_programs) is scope


def test_programs_are_not_shared_unless_it_is_set(tmp_path: Path) -> None:
    assert load(None, {}, {}).settings.scheduler.share_programs == "off"
    message = refused(tmp_path, '[scheduler]\nshare_programs = "yes"\n')
    assert "scheduler.share_programs" in message
    assert "off, own, all" in message


def test_a_rule_may_exempt_by_any_pattern(tmp_path: Path) -> None:
    result = loaded(tmp_path, '[sharing_quotas]\nserving = { unit = "ollama.*", group = "ops", share = false }\n')
    rule = SharingQuotaSettings(unit="ollama.*", group="ops", share=False)
    assert result.settings.sharing_quotas == {"serving": rule}


def test_a_rule_on_what_is_not_known_of_nvshares_clients_does_not_limit_them() -> None:
    known = {"pod", "namespace", "uid"}
    patterns = [item.name for item in fields(SharingQuotaSettings) if item.default == "*"]
    given: dict[str, dict[str, Any]] = {name: {name: "x", "core": 25} for name in patterns}
    rules = {name: SharingQuotaSettings(**values) for name, values in given.items()}
    expected = [QuotaRule(**{name: "x"}, quota=QuotaValues(core_percent=25)) for name in patterns if name in known]
    assert client_rules(rules) == expected
    assert client_rules({"all": SharingQuotaSettings(core=25)}) == [QuotaRule(quota=QuotaValues(core_percent=25))]
