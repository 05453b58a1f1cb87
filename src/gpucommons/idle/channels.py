"""The ways out: email by SMTP, and a webhook in the text format of Slack and Mattermost.

Each channel has a thread, a bounded queue, tries with growing pauses, and an age at which a message is dropped.
"""

import asyncio
import logging
import queue
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from gpucommons.base.address import parse_remote_address
from gpucommons.base.backoff import Backoff
from gpucommons.base.http_client import post_json
from gpucommons.config.accounts import MailSettings, WebhookSettings
from gpucommons.model.idle import ChannelState

if TYPE_CHECKING:
    import smtplib


# The ways out: email by SMTP, and a webhook in the text format of Slack and Mattermost. Both block.

# Imported where it is used: an agent that sends no email does not have it in memory.

_TIMEOUT_S: Final = 20.0
# For one email, from the connection to its end.
_MAIL_WITHIN_S: Final = 120.0
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


class Email(NamedTuple):
    """The password is read for each message, so that it can be replaced."""

    settings: MailSettings
    timeout_s: float = _TIMEOUT_S
    total_s: float = _MAIL_WITHIN_S
    name: str = "email"

    def deliver(self, letter: Letter) -> None:
        import smtplib
        from email.message import EmailMessage
        from email.utils import formatdate, make_msgid

        from gpucommons.idle.smtp import leave

        message = EmailMessage()
        message["From"] = self.settings.sender
        message["To"] = letter.address
        message["Subject"] = letter.subject
        message["Date"] = formatdate(localtime=True)
        message["Message-ID"] = make_msgid(domain=self.settings.sender.rpartition("@")[2])
        # Out-of-office replies are not sent to it.
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(letter.text + "\n", cte="quoted-printable")
        where = f"the mail server {parse_remote_address(self.settings.server)}"
        try:
            connection = self._connect()
            try:
                connection.send_message(message, self.settings.sender, [letter.address])
            finally:
                leave(connection)
        except smtplib.SMTPRecipientsRefused as error:
            code, answer = error.recipients[letter.address]
            detail = f"{where} refused {letter.address}: {_line(answer)}"
            raise DeliveryFailed(detail, final=code >= 500, of_letter=True) from None
        except smtplib.SMTPAuthenticationError as error:
            # Not final: the password file can be corrected.
            user = self.settings.user
            raise DeliveryFailed(f"{where} refused the user {user!r}: {_line(error.smtp_error)}") from None
        except smtplib.SMTPResponseException as error:
            final, of_letter = error.smtp_code >= 500, isinstance(error, smtplib.SMTPDataError)
            detail = f"{where} answered {error.smtp_code}: {_line(error.smtp_error)}"
            raise DeliveryFailed(detail, final, of_letter) from None
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

    def _connect(self) -> "smtplib.SMTP":
        """Raises DeliveryFailed, SMTPException or OSError."""
        from gpucommons.idle.smtp import PlainSmtp, TlsSmtp

        settings, address = self.settings, parse_remote_address(self.settings.server)
        context = _tls_context(settings.ca_file) if settings.tls != "none" else None
        connection = (
            TlsSmtp(address.host, address.port, self.timeout_s, self.total_s, context)
            if settings.tls == "tls" and context is not None
            else PlainSmtp(address.host, address.port, self.timeout_s, self.total_s)
        )
        try:
            if settings.tls == "starttls":
                connection.starttls(context=context)
            if settings.user:
                connection.login(settings.user, _secret(settings.password_file))
        except BaseException:
            connection.close()
            raise
        return connection


class Webhook(NamedTuple):
    """The URL contains a secret: it is in no message and no log. `url_file` is read for each message."""

    settings: WebhookSettings
    timeout_s: float = _TIMEOUT_S
    name: str = "webhook"

    def deliver(self, letter: Letter) -> None:
        url = self.settings.url or _secret(self.settings.url_file)

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


# One channel in its own thread: a bounded queue, tries with growing pauses, and an age at which a letter is given up.
#
# An unreachable channel delays neither the agent nor another channel. A letter is delivered at most once: one that was
# under way when the agent ended is not sent again.

_MAX_LETTERS: Final = 256
_STOP_WITHIN_S: Final = 1.0

log = logging.getLogger(__name__)


class Patience(NamedTuple):
    """Seconds: the first and the longest pause between two tries, and the age at which a letter is given up."""

    first_s: float = 5.0
    max_s: float = 900.0
    give_up_s: float = 6 * 3600.0


class Delivery(NamedTuple):
    """What became of a letter. `problem` is empty if it was delivered."""

    letter: Letter
    channel: str
    problem: str = ""


@dataclass(slots=True, eq=False)
class _WaitingLetter:
    """`since_s` is when it was submitted, `due_s` when it may be tried next."""

    letter: Letter
    since_s: float
    due_s: float
    backoff: Backoff


class Outbox:
    """`done` is called for each letter, on the thread of the channel or of the caller."""

    def __init__(
        self,
        channel: Channel,
        done: Callable[[Delivery], None],
        patience: Patience | None = None,
        max_letters: int = _MAX_LETTERS,
    ) -> None:
        self._channel = channel
        self._done = done
        self._patience = patience or Patience()
        self._max_letters = max_letters
        self._queue: queue.Queue[_WaitingLetter | None] = queue.Queue(max_letters)
        # Tried without success; changed on the channel's thread only.
        self._retries: list[_WaitingLetter] = []
        self._paused_until_s = 0.0
        self._backoff = Backoff(self._patience.first_s, self._patience.max_s)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"messages-{channel.name}", daemon=True)
        # Written on the channel's thread only; what is dropped is counted on that of the caller.
        self._state = ChannelState(channel.name)
        self._dropped = 0

    @property
    def name(self) -> str:
        return self._channel.name

    @property
    def state(self) -> ChannelState:
        return self._state._replace(dropped=self._dropped, waiting=self._queue.unfinished_tasks)

    def start(self) -> None:
        self._thread.start()

    def submit(self, letter: Letter) -> None:
        """Does not block: a letter that the queue cannot take is dropped."""
        now_s = time.monotonic()
        backoff = Backoff(self._patience.first_s, self._patience.max_s)
        try:
            if len(self._retries) + self._queue.qsize() >= self._max_letters:
                raise queue.Full
            self._queue.put_nowait(_WaitingLetter(letter, now_s, now_s, backoff))
        except queue.Full:
            self._dropped += 1
            self._done(Delivery(letter, self.name, "too many messages wait"))

    def close(self) -> list[Letter]:
        """The letters that wait for a try. One that is under way is not among them."""
        self._stopping.set()
        with suppress(queue.Full):  # Then the thread does not wait for a letter.
            self._queue.put_nowait(None)
        if self._thread.ident is not None:
            self._thread.join(_STOP_WITHIN_S)
        unsent = [waiting.letter for waiting in self._retries]
        while not self._queue.empty():
            unsent += [waiting.letter for waiting in (self._queue.get_nowait(),) if waiting is not None]
        return unsent

    def _work(self) -> None:
        while not self._stopping.is_set():
            waiting = self._next()
            if waiting is not None:
                self._attempt(waiting)

    def _next(self) -> _WaitingLetter | None:
        """The letter to try now: a new one, then the one whose next try is due first. Waits for it."""
        pause_s = self._paused_until_s - time.monotonic()
        if pause_s > 0:
            self._stopping.wait(pause_s)
            return None
        first = min(self._retries, key=lambda waiting: waiting.due_s, default=None)
        timeout_s = None if first is None else max(0.0, first.due_s - time.monotonic())
        try:
            letter = self._queue.get(timeout=timeout_s)
        except queue.Empty:
            if first is not None:
                self._retries.remove(first)
            return first
        if letter is None:
            self._queue.task_done()
        return letter

    def _attempt(self, waiting: _WaitingLetter) -> None:
        """One try. A letter that fails for now waits by itself, and the others are tried: a server may refuse only it.

        If the channel fails, all wait; then another letter comes first.
        """
        letter, problem = waiting.letter, self._try(waiting.letter)
        now_s = time.monotonic()
        if problem is None or problem.final or now_s - waiting.since_s >= self._patience.give_up_s:
            self._queue.task_done()
            if problem is not None:
                self._state = self._state._replace(failed=self._state.failed + 1)
                log.warning("messages: %r by %s is given up: %s", letter.subject, self.name, problem)
            self._done(Delivery(letter, self.name, "" if problem is None else str(problem)))
            return
        if problem.of_letter:
            waiting.due_s = now_s + waiting.backoff.next_s()
        else:
            waiting.due_s = self._paused_until_s = now_s + self._backoff.next_s()
        self._retries.append(waiting)

    def _try(self, letter: Letter) -> DeliveryFailed | None:
        try:
            self._channel.deliver(letter)
        except DeliveryFailed as error:
            if not error.of_letter:
                self._record_failure(str(error))
            return error
        except Exception as error:
            log.exception("messages: %s failed", self.name)
            self._record_failure(str(error))
            return DeliveryFailed(f"unexpected error: {error}", final=True)
        if self._state.failing_since_wall_s is not None:
            log.info("messages: %s delivers again", self.name)
        self._backoff.reset()
        self._state = self._state._replace(delivered=self._state.delivered + 1, failing_since_wall_s=None, detail="")
        return None

    def _record_failure(self, detail: str) -> None:
        """The log has one line for each beginning; the state has the newest reason."""
        if self._state.failing_since_wall_s is None:
            log.warning("messages: %s does not deliver: %s; it is tried again", self.name, detail)
            self._state = self._state._replace(failing_since_wall_s=time.time())
        self._state = self._state._replace(detail=detail)
