"""Model servers that can sleep: they are asked to give up what need not be kept, before their memory is moved.

vLLM has such calls (`/sleep`, `/wake_up`): it frees its caches, so that only its weights are moved. The rules of
[sharing_quotas] name the addresses. A call that fails changes nothing: the program is parked as it is.

The server belongs to a user, and the agent may be root. So a call follows no redirect and ends after a limit, since
other programs are parked only after this one. A rule may match programs of several users, who choose their commands
themselves: on this machine, the server that is asked has to be one of the program's own user.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from gpucommons.base.http_client import post_json
from gpucommons.base.text import lines_of
from gpucommons.scheduler.parking.host import newcomer_facts
from gpucommons.scheduler.parking.programs import ParkedProgram, program_of_process
from gpucommons.scheduler.programs.jobs import Program
from gpucommons.scheduler.programs.matching import ProgramRule

log = logging.getLogger(__name__)

# A server may write gigabytes before it answers.
_WITHIN_S: Final = 30.0
# After a failure, the same address is not asked to sleep for so long.
_AGAIN_S: Final = 600.0
_PORTS: Final = {"http": 80, "https": 443}
# Of /proc/net/tcp: the columns of a socket, and the state of one that listens.
_ADDRESS, _STATE, _UID = 1, 3, 7
_LISTENS: Final = "0A"


class SleepFailed(Exception):
    """One line."""


def is_local(url: str) -> bool:
    """Whether the address is one of this machine alone, so that the kernel says which user's server it is."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listeners(port: int) -> Iterator[int]:
    """The uids of the users whose programs accept connections to this port of the agent's network."""
    for name in ("tcp", "tcp6"):
        try:
            rows = lines_of(Path("/proc/self/net", name).read_text("ascii"))[1:]
        except OSError:
            continue
        for columns in map(str.split, rows):
            if columns[_STATE] == _LISTENS and int(columns[_ADDRESS].rpartition(":")[2], 16) == port:
                yield int(columns[_UID])


class SleepCalls:
    def __init__(self, rules: Sequence[ProgramRule], within_s: float = _WITHIN_S) -> None:
        self._rules = [rule for rule in rules if rule.sleep_url]
        self._within_s = within_s
        # Until when an address is not asked to sleep.
        self._not_before_s: dict[str, float] = {}

    async def sleep(self, program: ParkedProgram) -> bool:
        """Asks it to sleep, before it is parked. Returns whether it does."""
        match = self._rule_for(program)
        if match is None or monotonic() < self._not_before_s.get(match[0].sleep_url, 0.0):
            return False
        done = await self._call(program, *match, match[0].sleep_url)
        if not done:
            self._not_before_s[match[0].sleep_url] = monotonic() + _AGAIN_S
        return done

    async def wake(self, program: ParkedProgram) -> None:
        """Asks it to go on, once its memory is back."""
        match = self._rule_for(program)
        if match is not None:
            await self._call(program, *match, match[0].wake_url)

    def _rule_for(self, program: ParkedProgram) -> tuple[ProgramRule, Program] | None:
        if not self._rules or not program.places:
            return None
        known_program = program.program
        if known_program is None:
            # An earlier agent parked it: what /proc says of it has to do.
            process = next(iter(program.places))
            known_program = program_of_process(process, newcomer_facts(process.pid))
        return next(((rule, known_program) for rule in self._rules if rule.matches(known_program)), None)

    async def _call(self, program: ParkedProgram, rule: ProgramRule, known_program: Program, url: str) -> bool:
        try:
            if is_local(url):
                await asyncio.to_thread(_check_server, rule, known_program, url)
            await post_json(url, None, "the server", _failure, timeout_s=self._within_s)
        except SleepFailed as error:
            log.warning("parking: %s: %s failed: %s", program.name, url, error)
            return False
        return True


def _check_server(rule: ProgramRule, program: Program, url: str) -> None:
    """Raises SleepFailed unless the server is the program's. Of a rule that names the owner it may be root's: the proxy
    of a container engine."""
    uids = set(listeners(urlsplit(url).port or _PORTS[urlsplit(url).scheme]))
    if not uids:
        raise SleepFailed("no server listens there")
    if not uids <= {program.uid, 0 if rule.names_owner else program.uid}:
        raise SleepFailed("the server there is another user's")


def _failure(_: str, detail: str) -> SleepFailed:
    return SleepFailed(detail)
