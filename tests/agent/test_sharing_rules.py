"""The rules of [sharing_quotas]: which are for nvshare's clients, which for programs, and which are refused."""

from pathlib import Path

import pytest

from gpucommons.agent.sharing.rules import client_rules, program_rules
from gpucommons.cli.main import main
from gpucommons.config.load import load
from gpucommons.config.option import ConfigError
from gpucommons.config.settings import Settings
from gpucommons.scheduler.policy.quotas import QuotaRule, QuotaValues
from gpucommons.scheduler.programs.matching import ProgramRule

GIB = 2**30


def settings(tmp_path: Path, *lines: str) -> Settings:
    file = tmp_path / "config.toml"
    file.write_text("\n".join(("[sharing_quotas]", *lines)))
    return load(file, {}, {}).settings


def test_every_pattern_reaches_the_rule(tmp_path: Path) -> None:
    patterns = ["user", "group", "container", "pod", "namespace", "job", "unit", "command", "uid"]
    line = ", ".join(f'{name} = "{name}-*"' for name in patterns)
    (rule,) = program_rules(settings(tmp_path, f'all = {{ {line}, memory = "8Gi", core = 25 }}'))
    expected = {name: f"{name}-*" for name in patterns}
    assert rule == ProgramRule("all", **expected, quota=QuotaValues(8 * GIB, 25))  # type: ignore[arg-type]


def test_share_false_is_an_exemption(tmp_path: Path) -> None:
    (rule,) = program_rules(settings(tmp_path, 'serving = { unit = "ollama.service", share = false }'))
    assert rule == ProgramRule("serving", unit="ollama.service", share=False)


def test_rules_keep_the_order_of_the_file(tmp_path: Path) -> None:
    found = program_rules(settings(tmp_path, "b = { core = 10 }", 'a = { user = "bob", core = 20 }'))
    assert [rule.name for rule in found] == ["b", "a"]


@pytest.mark.parametrize("pattern", ["user", "group", "container", "job", "unit", "command"])
def test_a_rule_for_processes_does_not_match_what_a_client_claims(tmp_path: Path, pattern: str) -> None:
    """Such a rule would otherwise match every client: a client has no user, group or command to compare."""
    lines = (f'theirs = {{ {pattern} = "x", core = 10 }}', 'any = { namespace = "ml", core = 20 }')
    assert client_rules(settings(tmp_path, *lines)) == (QuotaRule(namespace="ml", quota=QuotaValues(core_percent=20)),)


def test_an_exemption_is_no_rule_for_clients(tmp_path: Path) -> None:
    assert client_rules(settings(tmp_path, 'a = { pod = "x", share = false }')) == ()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('a = { user = "" }', "sharing_quotas.a: user is empty and matches no program: use a shell pattern"),
        ('a = { command = "" }', "sharing_quotas.a: command is empty"),
        ("a = { share = false, core = 25 }", "sharing_quotas.a: share = false and a quota"),
        ('a = { share = false, memory = "1Gi" }', "sharing_quotas.a: share = false and a quota"),
        ('a = { sleep_url = "http://h/sleep" }', "sharing_quotas.a: sleep_url and wake_url belong together"),
        ('a = { sleep_url = "x", wake_url = "y" }', "sharing_quotas.a: 'x' is not an address"),
        (
            'a = { command = "*vllm*", sleep_url = "http://10.0.0.5/sleep", wake_url = "http://10.0.0.5/wake_up" }',
            "sharing_quotas.a: 'http://10.0.0.5/sleep' is not on this machine, and any user's program may match",
        ),
        ('a = { memory = "lots" }', "sharing_quotas.a: invalid amount of memory 'lots'"),
        ('a = { memory = "20" }', "sharing_quotas.a: '20' is 20 bytes: add a unit, such as 20G for 20 GB"),
        ('a = { share = "no" }', "'share': expected true or false, got 'no'"),
        ("a = { user = 5 }", "expected a str"),
        ('a = { usr = "bob" }', "unknown key 'usr'; did you mean 'user'?"),
    ],
)
def test_wrong_values_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        program_rules(settings(tmp_path, line))
    assert message in str(refused.value)
    with pytest.raises(SystemExit):
        main(["check-config", str(tmp_path / "config.toml")])
    assert message in capsys.readouterr().err
