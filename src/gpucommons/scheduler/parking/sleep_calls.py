"""Model servers that can sleep: they are asked to give up what need not be kept, before their memory is moved.

vLLM has such calls (`/sleep`, `/wake_up`): it frees its caches, so that only its weights are moved. The rules of
[sharing_quotas] name the addresses. A call that fails changes nothing: the program is parked as it is.
"""

import asyncio
import logging
import urllib.request
from collections.abc import Sequence
from typing import Final

from gpucommons.scheduler.parking.host import newcomer_facts
from gpucommons.scheduler.parking.programs import ParkedProgram, program_of_process
from gpucommons.scheduler.programs.matching import ProgramRule

log = logging.getLogger(__name__)

# A server may write gigabytes before it answers.
_WITHIN_S: Final = 60.0


class SleepCalls:
    def __init__(self, rules: Sequence[ProgramRule]) -> None:
        self._rules = [rule for rule in rules if rule.sleep_url]

    async def sleep(self, program: ParkedProgram) -> bool:
        """Asks it to sleep, before it is parked. Returns whether it does."""
        rule = self._rule(program)
        return rule is not None and await self._call(program, rule.sleep_url)

    async def wake(self, program: ParkedProgram) -> None:
        """Asks it to go on, once its memory is back."""
        rule = self._rule(program)
        if rule is not None:
            await self._call(program, rule.wake_url)

    def _rule(self, program: ParkedProgram) -> ProgramRule | None:
        if not self._rules or not program.places:
            return None
        found = program.program
        if found is None:
            # An earlier agent parked it: what /proc says of it has to do.
            process = next(iter(program.places))
            found = program_of_process(process, newcomer_facts(process.pid))
        return next((rule for rule in self._rules if rule.matches(found)), None)

    async def _call(self, program: ParkedProgram, url: str) -> bool:
        try:
            await asyncio.to_thread(_post, url)
        except (OSError, ValueError) as error:
            log.warning("parking: %s: %s failed: %s", program.name, url, error)
            return False
        return True


def _post(url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, data=b"", method="POST"), timeout=_WITHIN_S) as answer:
        answer.read(1 << 16)
