"""One channel in its own thread: a bounded queue, tries with growing pauses, and an age at which a letter is given up.

An unreachable channel delays neither the agent nor another channel. A letter is delivered at most once: one that was
under way when the agent ended is not sent again.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from gpucommons.base.backoff import Backoff
from gpucommons.idle.channels import Channel, DeliveryFailed, Letter
from gpucommons.model.idle import ChannelState

_MOST_LETTERS: Final = 256
_STOP_WITHIN_S: Final = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: the first and the longest pause between two tries, and the age at which a letter is given up."""

    first_s: float = 5.0
    most_s: float = 900.0
    give_up_s: float = 6 * 3600.0


class Delivery(NamedTuple):
    """What became of a letter. `problem` is empty if it was delivered."""

    letter: Letter
    channel: str
    problem: str = ""


class Outbox:
    """`done` is called for each letter, on the thread of the channel or of the caller."""

    def __init__(
        self,
        channel: Channel,
        done: Callable[[Delivery], None],
        patience: Patience | None = None,
        most_letters: int = _MOST_LETTERS,
    ) -> None:
        self._channel = channel
        self._done = done
        self._patience = patience or Patience()
        self._queue: queue.Queue[tuple[Letter, float] | None] = queue.Queue(most_letters)
        self._backoff = Backoff(self._patience.first_s, self._patience.most_s)
        self._stopping = threading.Event()
        self._unsent: list[Letter] = []
        self._thread = threading.Thread(target=self._work, name=f"messages-{channel.name}", daemon=True)
        # Written on the channel's thread only; what is dropped is counted on that of the caller.
        self._state = ChannelState(channel.name)
        self._dropped = 0

    @property
    def name(self) -> str:
        return self._channel.name

    @property
    def state(self) -> ChannelState:
        return replace(self._state, dropped=self._dropped, waiting=self._queue.unfinished_tasks)

    def start(self) -> None:
        self._thread.start()

    def submit(self, letter: Letter) -> None:
        """Does not block: a letter that the queue cannot take is dropped."""
        try:
            self._queue.put_nowait((letter, time.monotonic()))
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
        unsent = list(self._unsent)
        while not self._queue.empty():
            unsent += [waiting[0] for waiting in (self._queue.get_nowait(),) if waiting is not None]
        return unsent

    def _work(self) -> None:
        while not self._stopping.is_set():
            waiting = self._queue.get()
            if waiting is not None:
                self._try_until_done(*waiting)
            self._queue.task_done()

    def _try_until_done(self, letter: Letter, since_s: float) -> None:
        while True:
            problem = self._try(letter)
            if problem is None:
                self._done(Delivery(letter, self.name))
                return
            if problem.final or time.monotonic() - since_s >= self._patience.give_up_s:
                self._state = replace(self._state, failed=self._state.failed + 1)
                log.warning("messages: %r by %s is given up: %s", letter.subject, self.name, problem)
                self._done(Delivery(letter, self.name, str(problem)))
                return
            if self._stopping.wait(self._backoff.next_s()):
                self._unsent.append(letter)
                return

    def _try(self, letter: Letter) -> DeliveryFailed | None:
        try:
            self._channel.deliver(letter)
        except DeliveryFailed as error:
            if not error.of_letter:
                self._failed(str(error))
            return error
        except Exception as error:
            log.exception("messages: %s failed", self.name)
            self._failed(str(error))
            return DeliveryFailed(f"unexpected error: {error}", final=True)
        if self._state.failing_since_wall_s is not None:
            log.info("messages: %s delivers again", self.name)
        self._backoff.reset()
        self._state = replace(self._state, delivered=self._state.delivered + 1, failing_since_wall_s=None, detail="")
        return None

    def _failed(self, detail: str) -> None:
        """The log has one line for each beginning; the state has the newest reason."""
        if self._state.failing_since_wall_s is None:
            log.warning("messages: %s does not deliver: %s; it is tried again", self.name, detail)
            self._state = replace(self._state, failing_since_wall_s=time.time())
        self._state = replace(self._state, detail=detail)
