"""The channels and addresses for messages, from the settings; and which settings contradict each other."""

import socket
from collections.abc import Iterator

from gpucommons.base.address import parse_remote_address
from gpucommons.base.text import user_address
from gpucommons.config.accounts import IdleRuleSettings, MailSettings
from gpucommons.config.option import ConfigError
from gpucommons.config.settings import Settings
from gpucommons.idle.channels import Channel, DeliveryFailed, Email, Letter, Webhook


def idle_channels(settings: Settings) -> Iterator[Channel]:
    mail, webhook = settings.mail, settings.webhook
    if mail.server:
        yield Email(mail)
    if webhook.url or webhook.url_file:
        yield Webhook(webhook)


def send_test_message(channel: Channel, address: str) -> str | None:
    """Try it once, and return why it failed; None: it was delivered."""
    hostname = socket.gethostname()
    letter = Letter(
        f"{hostname}: test message of gpucommons",
        f"This is a test message of gpucommons on {hostname}. Messages about idle GPUs will arrive here.",
        address=address,
    )
    try:
        channel.deliver(letter)
    except DeliveryFailed as error:
        return str(error)
    return None


def address_of(user: str, rule: IdleRuleSettings | None, mail: MailSettings) -> str:
    """Where email for a holder goes; empty: nowhere."""
    return user_address((rule.email if rule else "") or mail.address, user)


def check_idle(settings: Settings) -> None:
    """Raises ConfigError, one line."""
    _check_action(settings)
    mail, webhook = settings.mail, settings.webhook
    rules = [f"idle_rules.{name}.email" for name, rule in settings.idle_rules.items() if rule.email]
    addressed = [name for name, value in (("mail.address", mail.address), ("mail.admin", mail.admin)) if value] + rules
    if addressed and not mail.server:
        raise ConfigError(f"{addressed[0]} needs mail.server, the HOST:PORT of an SMTP server")
    if mail.server and not mail.sender:
        raise ConfigError("mail.server needs mail.sender, the address from which messages are sent")
    if mail.user and not mail.password_file:
        raise ConfigError(f"mail.user = {mail.user!r} needs mail.password_file, a file with the password")
    if mail.user and mail.tls == "none" and not _is_local(mail.server):
        raise ConfigError("mail.user needs mail.tls = starttls or tls, not none: the password would be readable")
    if webhook.url and webhook.url_file:
        raise ConfigError("webhook.url and webhook.url_file exclude each other: set one of them")


def _check_action(settings: Settings) -> None:
    act, scheduler = settings.idle.act, settings.scheduler
    if act == "park" and not (scheduler.shares_programs and scheduler.pause == "driver"):
        raise ConfigError("idle.act = park needs scheduler.share_programs = own or all, and scheduler.pause = driver")
    if act == "end_lease" and settings.leases.enabled == "false":
        raise ConfigError("idle.act = end_lease needs leases: leases.enabled is false")


def _is_local(server: str) -> bool:
    return parse_remote_address(server).host in ("localhost", "127.0.0.1", "::1")
