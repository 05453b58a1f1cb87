"""`--json`: every command that reports something has it, and its document says what the text says."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from gpucommons.cli.main import COMMANDS, command_line, main

# Each with the reason why it prints no document.
WITHOUT_JSON = {
    "up": "runs until it is stopped; --log-format json is for its log",
    "run": "stdout is that of the command which it runs",
    "top": "an interactive screen",
    "completion": "a script for a shell",
    "stack logs": "the lines of other programs",
    "stack build": "the progress of docker build",
    "slurm prolog": "a hook: Slurm discards what it prints",
    "slurm epilog": "a hook: Slurm discards what it prints",
    "slurm task-prolog": "a hook: Slurm reads its lines",
    "slurm health": "a hook: Slurm discards what it prints",
    "slurm admin-comment": "a hook: it writes the comments of a job, one of which is JSON",
    "slurm targets": "its only output is JSON, in the format of Prometheus",
    "slurm config": "lines of slurm.conf and gres.conf, and scripts",
}


def leaves(found: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, TyperCommand]]:
    """The commands of the tree by what a user types."""
    if isinstance(found, TyperGroup):
        for name, inner in found.commands.items():
            yield from leaves(inner, (*path, name))
    else:
        assert isinstance(found, TyperCommand)
        yield " ".join(path), found


TREE = dict(leaves(get_command(command_line(COMMANDS))))


def here(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    """Status, stdout and stderr of a command that is run in this process."""
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    return (stopped.value.code, *capsys.readouterr())


def test_every_command_has_json_or_a_reason() -> None:
    without = {
        name for name, found in TREE.items() if not any("--json" in parameter.opts for parameter in found.params)
    }
    assert without == WITHOUT_JSON.keys()
    assert len(TREE) > 35, "the groups are included"


def test_json_is_the_same_option_everywhere() -> None:
    options = [parameter for found in TREE.values() for parameter in found.params if "--json" in parameter.opts]
    assert {(tuple(each.opts), getattr(each, "help", "")) for each in options} == {
        (("--json",), "Print one JSON document instead of text.")
    }


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = here(capsys, "version", "--json")
    found = json.loads(out)
    assert status == 0
    _, text, _ = here(capsys, "version")
    assert text == f"gpucommons {found['gpucommons_version']} (Python {found['python_version']}, {found['system']})\n"


def test_sample_is_the_document_of_the_snapshot(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = here(capsys, "sample", "--json", "--simulate", "lab")
    found = json.loads(out)
    assert (status, found["simulated"], found["node"]["cpu"]["cores"]) == (0, "lab", 64)


def test_check_config_has_the_values_of_the_text_and_their_origins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a file.toml"
    file.write_text("[sampling]\ninterval_s = 7\n[quotas.alice]\ngpu_equivalents = 2\n")
    monkeypatch.setenv("GPUCOMMONS_PROCESSES_BUSIEST", "9")
    monkeypatch.setenv("NVSHARE_SCHEDULING_MODE", "serial")
    monkeypatch.setenv("XPUSHARE_SCHEDULING_MODE", "auto")
    status, out, err = here(capsys, "check-config", str(file), "--json")
    found = json.loads(out)
    assert (status, found["file"], found["valid"], found["problems"]) == (0, str(file), True, [])
    values: dict[str, dict[str, Any]] = found["values"]
    assert values["sampling.interval_s"] == {"value": 7.0, "origin": "file", "where": str(file)}
    assert values["quotas.alice.gpu_equivalents"]["where"] == str(file)
    assert values["processes.busiest"] == {
        "value": 9,
        "origin": "environment",
        "where": "GPUCOMMONS_PROCESSES_BUSIEST",
    }
    assert values["path.procfs"] == {"value": "/proc", "origin": "default", "where": None}
    assert len(found["warnings"]) == 1
    assert err == f"warning: {found['warnings'][0]}\n"

    status, text, _ = here(capsys, "check-config", str(file), "--all")
    assert status == 0
    *lines, last = text.splitlines()
    differ = sum(row["origin"] != "default" for row in values.values())
    assert last == f"{file}: valid; {differ} of {len(values)} values differ from the defaults"
    _, changed, _ = here(capsys, "check-config", str(file))
    assert [line.split()[0] for line in changed.splitlines()[:-1]] == [
        path for path, row in values.items() if row["origin"] != "default"
    ]
    rows = [re.split(r"  +", line, maxsplit=1) for line in lines]
    assert [path for path, _ in rows] == list(values)
    for path, rest in rows:
        origin = " ".join(filter(None, (values[path]["origin"], values[path]["where"])))
        assert rest.removesuffix(origin).strip() == json.dumps(values[path]["value"], ensure_ascii=False)


def test_every_mistake_of_a_file_and_what_it_names_in_vain_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "g.toml"
    file.write_text("[sampling]\nspeed = 7\ninterval_s = 'soon'\n[leases]\nenabled = 5\n")
    status, out, err = here(capsys, "check-config", str(file), "--json")
    found = json.loads(out)
    assert (status, [problem["line"] for problem in found["problems"]]) == (2, [2, 3, 5])
    assert all(problem["message"] in err for problem in found["problems"])
    file.write_text("[leases]\nadmin_group = 'no-such-group'\n[webhook]\nurl_file = '/nowhere/url'\n")
    status, out, err = here(capsys, "check-config", str(file))
    assert (status, "valid" in out) == (0, True)
    assert "warning: leases.admin_group: there is no group 'no-such-group' on this machine\n" in err
    assert "warning: webhook.url_file: there is no file /nowhere/url\n" in err


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("[sampling]\ninterval_s =\n", 2, "not valid TOML"),
        ("[sampling]\nspeed = 7\n", 2, "line 2: unknown key 'sampling.speed'"),
        ("[idle]\nact = 'park'\n", None, "idle.act = park needs"),
    ],
)
def test_a_problem_of_a_configuration_is_in_the_document_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, line: int | None, says: str
) -> None:
    file = tmp_path / "g.toml"
    file.write_text(text)
    status, out, err = here(capsys, "check-config", str(file), "--json")
    found = json.loads(out)
    (problem,) = found["problems"]
    assert (status, found["valid"], found["values"], problem["line"]) == (2, False, None, line)
    assert says in problem["message"]
    assert err == f"gpucommons: {problem['message']}\n"
    assert here(capsys, "check-config", str(file)) == (2, "", err)


@pytest.mark.parametrize(
    "arguments",
    [("scheduler", "off"), ("scheduler", "set-limit", "pod", "--core", "5"), ("park", "1"), ("wake", "1"), ("queue",)],
    ids=" ".join,
)
def test_without_an_agent_the_error_is_that_of_the_text(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUCOMMONS_SCHEDULER_SOCKET", str(tmp_path / "scheduler.sock"))
    monkeypatch.setenv("GPUCOMMONS_LEASES_SOCKET", str(tmp_path / "leases.sock"))
    refused = here(capsys, *arguments, "--json")
    assert (refused[0], refused[1], refused[2].count("\n")) == (3, "", 1)
    assert here(capsys, *arguments) == refused
