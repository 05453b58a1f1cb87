"""`gpucommons check-config`: check a configuration file, print every value in force, try the channels of messages and
alerts."""

import grp
import os
import pwd
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from gpucommons.agent.idle.channels import check_idle, idle_channels, send_test_message
from gpucommons.agent.leases.leasing import check_lease_quotas
from gpucommons.agent.setting_rules import owner_rules
from gpucommons.agent.sharing.rules import check_rules
from gpucommons.agent.sharing.settings import check_parking, check_scheduler, check_slurm
from gpucommons.base.text import is_mail_address, printable
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.options import AsJson
from gpucommons.cli.output import show, show_error, show_line
from gpucommons.config.load import (
    LoadedSettings,
    as_toml,
    attribute,
    free_sections,
    keys,
    keys_of,
    load_without_mistakes,
)
from gpucommons.config.option import ConfigError
from gpucommons.config.settings import Settings
from gpucommons.faces.documents.values import Json, indent

# The ends of settings that name a file or a directory that is read, and settings that name a file of the agent's own.
_FILES = ("_file", "tls_certificate", "tls_key")
_DIRECTORIES = ("_dir", "_directory")
_WRITTEN = frozenset({"events.own_file", "stack.data_dir", "slurm.job_directory"})
# Sections whose users are those of the machine.
_OF_USERS = ("lease_quotas.", "idle_rules.")
_PATTERN = re.compile(r"[*?\[]")
# A longer value, such as a regular expression, moves the origin in its own line only.
_WIDEST_VALUE = 40


class _Value(NamedTuple):
    """A value in force. `origin` is default, or file, environment or flag with a name: `file /etc/gpucommons.toml`."""

    path: str
    value: str | float | bool
    origin: str


def check_config(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML file to check.")],
    send_test: Annotated[
        bool,
        typer.Option(
            "--send-test",
            help="Send a test message instead by each channel of [mail] and [webhook], and to each receiver of alerts "
            "of [stack]; print the result of each.",
        ),
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Recipient of the test email. Default: mail.admin.", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Print the values that are defaults, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a configuration file: every mistake, or what differs from the defaults.

    Each value is printed with its origin: default, file, environment or flag.
    """
    if to is not None and not send_test:
        raise CommandError("--to belongs to --send-test")
    try:
        loaded = _load_checked(file)
    except ConfigError as error:
        mistakes = (error, *error.more)
        if as_json:
            problems: list[Json] = [{"line": mistake.line, "message": str(mistake)} for mistake in mistakes]
            show(indent(_document(file, problems, [], None)))
        for mistake in mistakes[:-1]:
            show_error(printable(f"gpucommons: {mistake}"))
        raise mistakes[-1] from None
    if send_test:
        _send_test(loaded.settings, to, as_json)
        return
    values = _values(loaded)
    warnings = [*loaded.warnings, *_missing(values, loaded.settings.ds01.groups_directory)]
    for warning in warnings:
        show_error(printable(f"warning: {warning}"))
    if as_json:
        show(indent(_document(file, [], warnings, {value.path: _row(value) for value in values})))
        return
    changed = [value for value in values if value.origin != "default"]
    _show_table(values if every else changed)
    count = f"{len(changed)} of {len(values)} values differ from the defaults"
    show_line(printable(f"{file}: valid; {count if every else f'{count} (--all shows the others)'}"))


def _missing(values: Iterable[_Value], groups_directory: str) -> Iterator[str]:
    """Files, groups and users that a setting names and this machine does not have. They may come later: they are
    warnings. What the agent writes need not exist yet."""
    for path, value, origin in values:
        name = path.rpartition(".")[2]
        if origin == "default" or not isinstance(value, str) or not value or path in _WRITTEN:
            continue
        if name.endswith(_FILES) and not Path(value).exists():
            yield f"{path}: there is no file {value}"
        elif name.endswith(_DIRECTORIES) and not _PATTERN.search(value) and not Path(value).is_dir():
            yield f"{path}: there is no directory {value}"
        elif name in ("group", "admin_group") and not _PATTERN.search(value):
            # DS01's groups count in quotas; an administrator is a member of one of the system's.
            is_ds01s = name == "group" and Path(groups_directory, f"{value}.members").is_file()
            if not is_ds01s and not _is_group(value):
                yield f"{path}: there is no group {value!r} on this machine"
        elif path.startswith(_OF_USERS) and name == "user" and not _PATTERN.search(value) and not _is_user(value):
            yield f"{path}: there is no user {value!r} on this machine"


def _is_group(name: str) -> bool:
    try:
        return bool(grp.getgrnam(name))
    except KeyError:
        return False


def _is_user(name: str) -> bool:
    try:
        return bool(pwd.getpwnam(name))
    except KeyError:
        return False


def _load_checked(file: Path) -> LoadedSettings:
    """Raises ConfigError, with every mistake that would keep the agent from starting."""
    loaded, mistakes = load_without_mistakes(file, os.environ, {})
    wrong = mistakes.sections
    for check, sections in _CHECKS:
        # Of a section with a mistake it would judge a default. A mistake outside of the file may be in any section.
        if not wrong & {"", *sections}:
            with mistakes.collect():
                check(loaded.settings)
    mistakes.raise_any()
    return loaded


def _check_owner_rules(settings: Settings) -> None:
    """A file that this user may not read is not judged. Raises ConfigError."""
    file = settings.owners.rules_file
    readable = not file or not Path(file).exists() or os.access(file, os.R_OK)
    owner_rules(settings.owners if readable else replace(settings.owners, rules_file=""))


# What the agent checks when it starts, and the sections that each check reads. Rows with a mistake are left out.
_CHECKS: Final[tuple[tuple[Callable[[Settings], None], tuple[str, ...]], ...]] = (
    (lambda settings: check_scheduler(settings.scheduler), ("scheduler",)),
    (lambda settings: check_parking(settings.parking, settings.scheduler), ("parking", "scheduler")),
    (check_slurm, ("slurm", "scheduler", "leases")),
    (check_rules, ()),
    (check_idle, ("idle", "mail", "webhook", "scheduler", "leases")),
    (check_lease_quotas, ("ledger", "leases")),
    (_check_owner_rules, ("owners",)),
)


def _values(loaded: LoadedSettings) -> list[_Value]:
    tables = [(getattr(loaded.settings, key.section), key) for key in keys()]
    for section, row_type in free_sections():
        for name, row in getattr(loaded.settings, section).items():
            tables += [(row, key) for key in keys_of(f"{section}.{name}", row_type)]
    return [_Value(key.path, getattr(table, attribute(key.name)), loaded.origins[key.path]) for table, key in tables]


def _document(file: Path, problems: Sequence[Json], warnings: Sequence[str], values: Json) -> Json:
    return {
        "file": str(file),
        "valid": not problems,
        "problems": problems,
        "warnings": warnings,
        "values": values,
    }


def _row(value: _Value) -> Json:
    """`where` is the file, the environment variable or the flag that sets it; null for a default."""
    origin, _, where = value.origin.partition(" ")
    return {"value": value.value, "origin": origin, "where": where or None}


def _show_table(values: Iterable[_Value]) -> None:
    rows = [(value.path, as_toml(value.value), value.origin) for value in values]
    if not rows:
        return
    path_width = max(len(path) for path, _, _ in rows)
    value_width = min(max(len(value) for _, value, _ in rows), _WIDEST_VALUE)
    for path, value, origin in rows:
        show_line(printable(f"{path:<{path_width}}  {value:<{value_width}}  {origin}"))


def _send_test(settings: Settings, to: str | None, as_json: bool) -> None:
    """One try for each channel. Ends with an error if one of them failed."""
    results: dict[str, Json] = {}
    for name, address, error in _try_channels(settings, to or settings.mail.admin):
        results[name] = {"delivered": error is None, "address": address, "error": error}
        if error is not None:
            show_error(printable(f"{name}: failed: {error}"))
        elif not as_json:
            show_line(printable(f"{name}: delivered{f' to {address}' if address else ''}"))
    if not results:
        raise CommandError(
            "no channel is configured: set mail.server, webhook.url or webhook.url_file, or a receiver of [stack]"
        )
    if as_json:
        show(indent({"channels": results}))
    if any(isinstance(row, dict) and not row["delivered"] for row in results.values()):
        raise typer.Exit(1)


def _try_channels(settings: Settings, to: str) -> Iterator[tuple[str, str | None, str | None]]:
    """Name, address and error of each channel, when it has been tried. The error of one that delivers is None."""
    if settings.mail.server and not is_mail_address(to):
        raise CommandError(f"{to!r} is not an email address: set mail.admin, or name one with --to ADDRESS")
    for channel in idle_channels(settings):
        yield channel.name, to if channel.name == "email" else None, send_test_message(channel, to)
    # Imported here: a check without a test message does not need it.
    from gpucommons.cli.stack import stack_root
    from gpucommons.stack.check import StackError
    from gpucommons.stack.prometheus import Layout
    from gpucommons.stack.receivers import integrations, try_receivers

    stack = settings.stack
    expected = integrations(stack)
    if not expected:
        return
    try:
        log = Layout(stack_root(stack)).log("alertmanager")
        for name, error in try_receivers(stack, stack.node or socket.gethostname(), log):
            yield f"stack {name}", stack.email_to if name == "email" else None, error
    except StackError as problem:
        yield "stack", None, str(problem)
