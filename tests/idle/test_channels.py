"""Email and webhook against real servers: what arrives, and what is said when nothing can."""

import ssl
from pathlib import Path

import pytest

from certificates import Authority
from gpucommons.config.accounts import MailSettings, WebhookSettings
from gpucommons.idle.channels import Channel, DeliveryFailed, Email, Letter, Webhook
from prometheus_server import free_port
from receivers import (
    PASSWORD,
    USER,
    hook,
    mailbox,
    raw_server,
    scripted_mail_server,
    silent_server,
    slow_mail_server,
)

LETTER = Letter(
    "gpu1: GPU 3 idle for 2 h", "GPU 3 of gpu1 is idle: größer <!channel> @all & co.", "alice", "a@example.org"
)


def failure(channel: Channel, letter: Letter = LETTER) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as caught:
        channel.deliver(letter)
    assert "\n" not in str(caught.value)
    return caught.value


def plain(server: str, timeout_s: float = 20.0, total_s: float = 60.0) -> Email:
    return Email(MailSettings(server, "none", sender="gpus@example.org"), timeout_s, total_s)


def test_an_email_arrives_with_its_headers() -> None:
    with mailbox() as (box, server):
        plain(server).deliver(LETTER)
    (mail,) = box.mails
    assert box.recipients == ["a@example.org"]
    assert (mail["From"], mail["To"], mail["Subject"]) == ("gpus@example.org", "a@example.org", LETTER.subject)
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail["Message-ID"].endswith("@example.org>")
    assert box.texts() == [LETTER.text]


def test_an_email_over_starttls_with_a_login(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("mail", "localhost")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.cert_file, pair.key_file)
    secret = tmp_path / "password"
    secret.write_text("wrong\n")
    with mailbox(tls=tls) as (box, server):

        def email(ca_file: str) -> Email:
            return Email(MailSettings(server, "starttls", ca_file, USER, str(secret), "gpus@example.org"))

        trusting = email(str(authority.file))
        wrong = failure(trusting)
        assert "refused the user 'gpus'" in str(wrong)
        assert not wrong.final, "the password can be corrected while the agent runs"
        assert "cannot be trusted" in str(failure(email("")))
        assert "no-such-file" in str(failure(email("/no-such-file")))
        secret.write_text(f"{PASSWORD}\n")
        trusting.deliver(LETTER)
        assert box.subjects == [LETTER.subject]
        secret.unlink()
        assert str(failure(trusting)) == f"cannot read {secret}: No such file or directory"


def test_a_recipient_that_the_server_refuses_is_not_tried_again() -> None:
    with mailbox() as (box, server):
        refused = failure(plain(server), LETTER._replace(address="unknown@example.org"))
        assert (refused.final, refused.of_letter) == (True, True)
        assert "unknown@example.org" in str(refused)
        assert "no such user" in str(refused)
        assert box.mails == []


def test_a_mail_server_that_is_not_there_or_does_not_answer() -> None:
    gone = failure(plain(f"127.0.0.1:{free_port()}"))
    assert "Connection refused" in str(gone)
    assert not gone.final
    with silent_server() as port:
        silent = failure(plain(f"127.0.0.1:{port}", timeout_s=0.2))
    assert str(silent) == f"the mail server 127.0.0.1:{port} does not answer in time"


def test_a_mail_server_that_answers_byte_by_byte_or_without_an_end_is_left() -> None:
    with slow_mail_server(200 * [b"2"], pause_s=0.05) as port:
        slow = failure(plain(f"127.0.0.1:{port}", timeout_s=5.0, total_s=0.3))
    assert str(slow) == f"the mail server 127.0.0.1:{port} does not answer in time"
    with slow_mail_server(1000 * [100 * b"220-and more\r\n"], pause_s=0.0) as port:
        endless = failure(plain(f"127.0.0.1:{port}"))
    assert "an answer of more than 65536 bytes" in str(endless)
    assert not endless.final


def test_an_email_that_was_taken_is_not_sent_again_whatever_the_server_says_at_the_end() -> None:
    with scripted_mail_server({"QUIT": "451 not now"}) as (mails, port):
        plain(f"127.0.0.1:{port}").deliver(LETTER)
    assert len(mails) == 1


def test_an_email_whose_content_is_refused_for_now_says_nothing_of_others() -> None:
    with scripted_mail_server({"DATA": "451 looks odd"}) as (_, port):
        refused = failure(plain(f"127.0.0.1:{port}"))
    assert (refused.final, refused.of_letter) == (False, True)
    with scripted_mail_server({"RCPT": "550 unknown", "QUIT": "421 go away"}) as (_, port):
        refused = failure(plain(f"127.0.0.1:{port}"))
    assert (refused.final, refused.of_letter) == (True, True), "the refusal is not hidden by the end"


def test_the_webhook_gets_text_that_calls_no_one(tmp_path: Path) -> None:
    with hook() as (made, url):
        Webhook(WebhookSettings(url)).deliver(LETTER)
        file = tmp_path / "url"
        file.write_text(f"{url}\n")
        Webhook(WebhookSettings(url_file=str(file))).deliver(LETTER)
    expected = "GPU 3 of gpu1 is idle: größer &lt;!channel&gt; @\u200ball &amp; co."
    assert made.bodies == [{"text": expected}] * 2
    assert "cannot read" in str(failure(Webhook(WebhookSettings(url_file=str(tmp_path / "none")))))


@pytest.mark.parametrize("answer", [b"x" * (10 << 20), b"x"], ids=["10 MB", "one byte of many"])
def test_a_webhook_with_a_long_or_slow_answer_has_the_message_once(answer: bytes) -> None:
    """It has taken the message: a second try would be a second message."""
    with raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 10485760\r\n\r\n" + answer) as (requests, port):
        Webhook(WebhookSettings(f"http://127.0.0.1:{port}/services/secret"), timeout_s=20.0).deliver(LETTER)
        assert len(requests) == 1


def test_a_webhook_that_refuses_with_a_long_answer_is_not_asked_again() -> None:
    with raw_server(b"HTTP/1.1 404 Not Found\r\nContent-Length: 10485760\r\n\r\n" + b"x" * (10 << 20)) as (_, port):
        refused = failure(Webhook(WebhookSettings(f"http://127.0.0.1:{port}/services/secret")))
    assert refused.final
    assert str(refused) == "the webhook answered with status 404"


@pytest.mark.parametrize(("status", "final"), [(404, True), (400, True), (302, True), (429, False), (503, False)])
def test_refusals_of_the_webhook(status: int, final: bool) -> None:
    with hook() as (made, url):
        made.statuses = [status]
        refused = failure(Webhook(WebhookSettings(url)))
    assert refused.final is final
    assert str(refused) == f"the webhook answered with status {status}"


def test_a_webhook_that_is_not_there_or_does_not_answer_is_named_without_its_secret() -> None:
    gone = failure(Webhook(WebhookSettings(f"http://127.0.0.1:{free_port()}/services/secret")))
    assert "cannot reach the webhook" in str(gone)
    with silent_server() as port:
        silent = failure(Webhook(WebhookSettings(f"http://127.0.0.1:{port}/services/secret"), timeout_s=0.2))
    assert str(silent) == "the webhook does not answer in time"
    assert "secret" not in f"{gone} {silent}"
    assert (gone.final, silent.final) == (False, False)
