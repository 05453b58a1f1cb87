"""`gpucommons check-config`: check a configuration file, print every value in force, try the channels of messages."""

import socket
from pathlib import Path
from typing import Annotated

import typer

from gpucommons.agent.idle_channels import check_idle, idle_channels
from gpucommons.agent.sharing_checks import check_parking, check_scheduler
from gpucommons.agent.sharing_rules import check_rules
from gpucommons.base.mail_address import is_mail_address
from gpucommons.base.printable import printable
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.options import load_settings
from gpucommons.cli.output import show_error, show_line
from gpucommons.config.load import as_toml, free_sections, keys, keys_of
from gpucommons.config.settings import Settings
from gpucommons.idle.channels import DeliveryFailed, Letter

# A longer value, such as a regular expression, moves the origin in its own line only.
_WIDEST_VALUE = 40


def check_config(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML file to check.")],
    send_test: Annotated[
        bool,
        typer.Option(
            "--send-test",
            help="Send a test message by each channel of [mail] and [webhook] instead, and print the result of each.",
        ),
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Recipient of the test email. Default: mail.admin.", show_default=False),
    ] = None,
) -> None:
    """Check a configuration file and print the values in force.

    Each value is printed with its origin: default, file, environment or flag.
    """
    if to is not None and not send_test:
        raise CommandError("--to belongs to --send-test")
    loaded = load_settings(file, {})
    check_scheduler(loaded.settings.scheduler)
    check_parking(loaded.settings.parking, loaded.settings.scheduler)
    check_rules(loaded.settings)
    check_idle(loaded.settings)
    if send_test:
        _send_test(loaded.settings, to)
        return
    rows = [
        (key.path, as_toml(getattr(getattr(loaded.settings, key.section), key.name)), loaded.origins[key.path])
        for key in keys()
    ]
    for section, row_type in free_sections():
        for name, row in getattr(loaded.settings, section).items():
            for key in keys_of(f"{section}.{name}", row_type):
                rows.append((key.path, as_toml(getattr(row, key.name)), loaded.origins[key.path]))
    path_width = max(len(path) for path, _, _ in rows)
    value_width = min(max(len(value) for _, value, _ in rows), _WIDEST_VALUE)
    for warning in loaded.warnings:
        show_error(printable(f"warning: {warning}"))
    for path, value, origin in rows:
        show_line(printable(f"{path:<{path_width}}  {value:<{value_width}}  {origin}"))


def _send_test(settings: Settings, to: str | None) -> None:
    """One try for each channel. Ends with an error if one of them failed."""
    channels = list(idle_channels(settings))
    if not channels:
        raise CommandError("no channel is configured: set mail.server, webhook.url or webhook.url_file")
    address = to or settings.mail.admin
    if settings.mail.server and not is_mail_address(address):
        raise CommandError(f"{address!r} is not an email address: set mail.admin, or name one with --to ADDRESS")
    hostname = socket.gethostname()
    letter = Letter(
        f"{hostname}: test message of gpucommons",
        f"This is a test message of gpucommons on {hostname}. Messages about idle GPUs will arrive here.",
        address=address,
    )
    failed = False
    for channel in channels:
        try:
            channel.deliver(letter)
        except DeliveryFailed as error:
            failed = True
            show_error(printable(f"{channel.name}: failed: {error}"))
        else:
            show_line(printable(f"{channel.name}: delivered{f' to {address}' if channel.name == 'email' else ''}"))
    if failed:
        raise typer.Exit(1)
