"""Data over NVLink: the counters of all links together, and the rate of each link since the previous reading.

One driver call for all of them. The first call requests every possible link; links that the GPU does not have are left
out afterwards.
"""

from collections.abc import Callable

import pynvml

from gpucommons.model.gpu import NvLinkRates
from gpucommons.sources.nvml import codes
from gpucommons.sources.nvml.call import Handle, Slots
from gpucommons.sources.nvml.kinds import SLOT, clearing
from gpucommons.sources.nvml.library import Function
from gpucommons.sources.nvml.structs import FieldValue, value_of

_ALL_LINKS = 2**32 - 1
_SENT, _RECEIVED = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
_PER_SECOND = 1e6
_NO_SUCH_LINK = codes.SETTLED | {codes.INVALID_ARGUMENT, codes.NOT_FOUND}


class NvLinkTraffic:
    """`invoke`, `store` and `clear` are those of a Call."""

    def __init__(self, function: Function, handle: Handle, slots: Slots, wall: Callable[[], float]) -> None:
        self.rates: NvLinkRates | None = None
        self._function = function
        self._handle = handle
        self._slots = slots
        self._wall = wall
        self._clear_slots = clearing(slots, "nvlink_tx_kibibytes", "nvlink_rx_kibibytes")
        self._before: dict[int, tuple[int, int]] = {}
        self._request((_ALL_LINKS, *range(pynvml.NVML_NVLINK_MAX_LINKS)))

    def _request(self, scopes: tuple[int, ...]) -> None:
        self._scopes = scopes
        self._fields = (FieldValue * (2 * len(scopes)))()
        for place, scope in enumerate(scopes):
            sent, received = self._fields[2 * place], self._fields[2 * place + 1]
            sent.field_id, received.field_id = _SENT, _RECEIVED
            sent.scope_id = received.scope_id = scope

    def invoke(self) -> int:
        code = self._function(self._handle, len(self._fields), self._fields)
        return code or int(self._fields[0].code) or int(self._fields[1].code)

    def store(self) -> str | None:
        now: dict[int, tuple[int, int]] = {}
        absent: set[int] = set()
        for place, scope in enumerate(self._scopes):
            sent, received = self._fields[2 * place], self._fields[2 * place + 1]
            if sent.code in _NO_SUCH_LINK:
                absent.add(scope)
            elif sent.code == received.code == codes.OK:
                at_us = max(sent.timestamp, received.timestamp) or round(self._wall() * _PER_SECOND)
                now[scope] = (int(value_of(sent) or 0) + int(value_of(received) or 0), at_us)
        self._slots[SLOT["nvlink_tx_kibibytes"]] = value_of(self._fields[0])
        self._slots[SLOT["nvlink_rx_kibibytes"]] = value_of(self._fields[1])
        rates = {scope: rate for scope in now if (rate := self._rate(scope, now[scope])) is not None}
        total = rates.pop(_ALL_LINKS, None)
        self.rates = NvLinkRates(total, rates)
        self._before = now
        if absent:
            self._request(tuple(scope for scope in self._scopes if scope not in absent))
        return None

    def _rate(self, scope: int, now: tuple[int, int]) -> float | None:
        """None at the first reading, and if the counter or the clock went back."""
        kibibytes, at_us = now
        before_kibibytes, before_us = self._before.get(scope, (kibibytes, at_us))
        if at_us <= before_us or kibibytes < before_kibibytes:
            return None
        return (kibibytes - before_kibibytes) / (at_us - before_us) * _PER_SECOND

    def clear(self) -> None:
        self._clear_slots()
        self.rates = None
        self._before = {}
