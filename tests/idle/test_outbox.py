"""A channel in its own thread: it retries, gives up, is bounded, and its state shows all of it."""

import logging
import time

import pytest

from gpucommons.config.accounts import MailSettings, WebhookSettings
from gpucommons.idle.channels import Delivery, DeliveryFailed, Email, Letter, Outbox, Patience, Webhook
from prometheus_server import free_port
from receivers import hook, mailbox, silent_server
from waiting import until

SOON = Patience(first_s=0.01, max_s=0.05)
LETTER = Letter("subject", "text", "alice", "alice@example.org", "holder", 7200.0)


def test_a_webhook_that_fails_twice_gets_the_letter_once(caplog: pytest.LogCaptureFixture) -> None:
    done: list[Delivery] = []
    with hook() as (made, url), caplog.at_level(logging.INFO):
        made.statuses = [503, 503]
        outbox = Outbox(Webhook(WebhookSettings(url)), done.append, SOON)
        outbox.start()
        outbox.submit(LETTER)
        until(lambda: done, "it is delivered")
        outbox.submit(LETTER)
        until(lambda: len(done) == 2, "and the next one")
        assert outbox.close() == []
    assert (made.requests, len(made.texts)) == (4, 2)
    assert done == [Delivery(LETTER, "webhook")] * 2
    assert (outbox.state.delivered, outbox.state.failed, outbox.state.failing_since_wall_s) == (2, 0, None)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("gpucommons")]
    assert lines == [
        "messages: webhook does not deliver: the webhook answered with status 503; it is tried again",
        "messages: webhook delivers again",
    ]


def test_a_letter_is_given_up_at_its_age_and_the_state_says_why() -> None:
    done: list[Delivery] = []
    channel = Email(MailSettings(f"127.0.0.1:{free_port()}", "none", sender="gpus@example.org"))
    outbox = Outbox(channel, done.append, Patience(0.01, 0.02, give_up_s=0.1))
    outbox.start()
    outbox.submit(LETTER)
    until(lambda: done, "it is given up")
    assert "Connection refused" in done[0].problem
    state = outbox.state
    assert (state.delivered, state.failed) == (0, 1)
    assert state.failing_since_wall_s is not None
    assert "Connection refused" in state.detail
    outbox.close()


def test_a_refused_recipient_does_not_make_the_channel_look_broken() -> None:
    done: list[Delivery] = []
    with mailbox() as (box, server):
        outbox = Outbox(Email(MailSettings(server, "none", sender="gpus@example.org")), done.append, SOON)
        outbox.start()
        outbox.submit(LETTER._replace(address="unknown@example.org"))
        until(lambda: done, "it is refused")
        assert outbox.state.failing_since_wall_s is None
        outbox.submit(LETTER)
        until(lambda: len(done) == 2, "both are done")
        outbox.close()
    assert [bool(each.problem) for each in done] == [True, False]
    assert box.recipients == ["alice@example.org"]
    assert (outbox.state.failed, outbox.state.delivered, outbox.state.failing_since_wall_s) == (1, 1, None)


def test_a_server_that_never_answers_delays_nothing_and_drops_what_is_too_much() -> None:
    done: list[Delivery] = []
    with silent_server() as port:
        outbox = Outbox(
            Webhook(WebhookSettings(f"http://127.0.0.1:{port}/"), timeout_s=30.0), done.append, SOON, max_letters=3
        )
        outbox.start()
        outbox.submit(LETTER)
        until(lambda: outbox.state.waiting == 1 and outbox._queue.empty(), "the first is under way")
        for number in range(5):
            outbox.submit(LETTER._replace(text=str(number)))
        assert (outbox.state.waiting, outbox.state.dropped) == (4, 2)
        assert [each.problem for each in done] == ["too many messages wait"] * 2
        begun_s = time.monotonic()
        unsent = outbox.close()
        assert time.monotonic() - begun_s < 20, "it does not wait for the answer"
    assert [letter.text for letter in unsent] == ["0", "1", "2"], "without the one that is under way"


def test_a_letter_that_waits_for_its_next_try_is_handed_back() -> None:
    channel = Webhook(WebhookSettings(f"http://127.0.0.1:{free_port()}/"))
    outbox = Outbox(channel, lambda _: None, Patience(first_s=600.0, max_s=600.0))
    outbox.start()
    outbox.submit(LETTER)
    until(lambda: outbox.state.failing_since_wall_s, "the first try failed")
    assert outbox.close() == [LETTER]


def test_a_recipient_that_is_refused_for_now_holds_back_no_other_letter() -> None:
    done: list[Delivery] = []
    with mailbox() as (box, server):
        channel = Email(MailSettings(server, "none", sender="gpus@example.org"))
        outbox = Outbox(channel, done.append, Patience(first_s=600.0, max_s=600.0))
        outbox.start()
        full = LETTER._replace(address="full@example.org")
        outbox.submit(full)
        outbox.submit(LETTER)
        outbox.submit(LETTER)
        until(lambda: len(done) == 2, "the others are delivered")
        assert (outbox.state.waiting, outbox.state.failing_since_wall_s) == (1, None)
        assert outbox.close() == [full]
    assert box.recipients == ["alice@example.org"] * 2


class Picky:
    """A channel that fails for one text, as if it could not be reached."""

    name = "picky"

    def __init__(self) -> None:
        self.tried: list[str] = []

    def deliver(self, letter: Letter) -> None:
        self.tried.append(letter.text)
        if letter.text == "bad":
            raise DeliveryFailed("status 500")


def test_a_letter_at_which_the_channel_fails_comes_last_the_next_time() -> None:
    done: list[Delivery] = []
    channel = Picky()
    outbox = Outbox(channel, done.append, Patience(0.01, 0.02, give_up_s=0.5))
    for text in ("bad", "a", "b"):
        outbox.submit(LETTER._replace(text=text))
    outbox.start()
    until(lambda: len(done) == 3, "all are done")
    outbox.close()
    assert channel.tried[:4] == ["bad", "a", "b", "bad"]
    assert [each.letter.text for each in done] == ["a", "b", "bad"]
    assert done[-1].problem == "status 500"
