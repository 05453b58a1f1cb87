"""The ways out: email by SMTP, and a webhook in the text format of Slack and Mattermost. Both block."""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from gpucommons.base.address import Address
from gpucommons.base.http_client import post_json

# Imported where it is used: an agent that sends no email does not have it in memory.
if TYPE_CHECKING:
    import smtplib

_TIMEOUT_S: Final = 20.0
_LONGEST_DETAIL: Final = 200


class Letter(NamedTuple):
    """One message. `address` is where an email goes. `holder` and `notified_s` are the idle period that it is about."""

    subject: str
    text: str
    user: str = ""
    address: str = ""
    holder: str = ""
    notified_s: float = 0.0


class DeliveryFailed(Exception):
    """One line. `final`: another try would fail as well. `of_letter`: the channel delivers other letters."""

    def __init__(self, detail: str, final: bool = False, of_letter: bool = False) -> None:
        super().__init__(detail)
        self.final = final
        self.of_letter = of_letter


class Channel(Protocol):
    @property
    def name(self) -> str: ...
    def deliver(self, letter: Letter) -> None:
        """Blocks for a limited time. Raises DeliveryFailed."""


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """`tls` is starttls, tls or none. The password is read for each message, so that it can be replaced."""

    address: Address
    tls: str
    sender: str
    user: str = ""
    password_file: str = ""
    ca_file: str = ""


@dataclass(frozen=True, slots=True)
class Email:
    server: SmtpServer
    timeout_s: float = _TIMEOUT_S
    name: str = "email"

    def deliver(self, letter: Letter) -> None:
        import smtplib
        from email.message import EmailMessage
        from email.utils import formatdate, make_msgid

        message = EmailMessage()
        message["From"] = self.server.sender
        message["To"] = letter.address
        message["Subject"] = letter.subject
        message["Date"] = formatdate(localtime=True)
        message["Message-ID"] = make_msgid(domain=self.server.sender.rpartition("@")[2])
        # Out-of-office replies are not sent to it.
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(letter.text + "\n", cte="quoted-printable")
        where = f"the mail server {self.server.address}"
        try:
            with self._connected() as connection:
                connection.send_message(message, self.server.sender, [letter.address])
        except smtplib.SMTPRecipientsRefused as error:
            code, answer = error.recipients[letter.address]
            detail = f"{where} refused {letter.address}: {_line(answer)}"
            raise DeliveryFailed(detail, final=code >= 500, of_letter=True) from None
        except smtplib.SMTPAuthenticationError as error:
            # Not final: the password file can be corrected.
            raise DeliveryFailed(f"{where} refused the user {self.server.user!r}: {_line(error.smtp_error)}") from None
        except smtplib.SMTPResponseException as error:
            final = error.smtp_code >= 500
            raise DeliveryFailed(f"{where} answered {error.smtp_code}: {_line(error.smtp_error)}", final) from None
        except smtplib.SMTPException as error:
            silent = isinstance(error.__context__, TimeoutError)
            detail = f"{where} does not answer in time" if silent else f"{where}: {_line(str(error))}"
            raise DeliveryFailed(detail) from None
        except ssl.SSLError as error:
            raise DeliveryFailed(f"{where} cannot be trusted: {_line(str(error))}") from None
        except TimeoutError:
            raise DeliveryFailed(f"{where} does not answer in time") from None
        except OSError as error:
            raise DeliveryFailed(f"cannot reach {where}: {error.strerror or error}") from None

    def _connected(self) -> "smtplib.SMTP":
        """Raises DeliveryFailed, SMTPException or OSError."""
        import smtplib

        server = self.server
        host, port = server.address.host, server.address.port
        context = _tls_context(server.ca_file) if server.tls != "none" else None
        connection = (
            smtplib.SMTP_SSL(host, port, timeout=self.timeout_s, context=context)
            if server.tls == "tls"
            else smtplib.SMTP(host, port, timeout=self.timeout_s)
        )
        try:
            if server.tls == "starttls":
                connection.starttls(context=context)
            if server.user:
                connection.login(server.user, _secret(server.password_file))
        except BaseException:
            connection.close()
            raise
        return connection


@dataclass(frozen=True, slots=True)
class Webhook:
    """The URL contains a secret: it is in no message and no log. `url_file` is read for each message."""

    url: str = ""
    url_file: str = ""
    timeout_s: float = _TIMEOUT_S
    name: str = "webhook"

    def deliver(self, letter: Letter) -> None:
        url = self.url or _secret(self.url_file)

        def failure(reason: str, detail: str) -> Exception:
            return DeliveryFailed(detail, final=reason == "status")

        asyncio.run(
            post_json(url, {"text": webhook_text(letter.text)}, "the webhook", failure, timeout_s=self.timeout_s)
        )


def webhook_text(text: str) -> str:
    """Names in the text come from users: they can neither format it nor call people (`<!channel>`, `@all`)."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("@", "@\u200b")


def _tls_context(ca_file: str) -> ssl.SSLContext:
    """Raises DeliveryFailed."""
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise DeliveryFailed(f"cannot read {ca_file}: {error.strerror or error}") from None


def _secret(path: str) -> str:
    """The first line of a file. Raises DeliveryFailed."""
    try:
        return Path(path).read_text("utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise DeliveryFailed(f"cannot read {path}: {reason}") from None


def _line(answer: bytes | str) -> str:
    text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
    return " ".join(text.split())[:_LONGEST_DETAIL]
