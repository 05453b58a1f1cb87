"""One GPU in one session: its calls, prepared and sorted into lanes, and the pass over them.

Data over NVLink needs the counters of all links and the previous reading, so that it has a part of its own.
"""

import logging
from collections.abc import Callable, Iterable, Iterator

from gpucommons.model.gpu import Gpu, GpuIdentity, GpuReadings, MigInstance, NvLinkRates
from gpucommons.sources.nvml import header, library, mig
from gpucommons.sources.nvml.calls import (
    SLOT,
    SLOW_EVERY_S,
    Call,
    Handle,
    Invoke,
    Lane,
    Slots,
    Store,
    clearing,
    is_cheap_again,
    is_costly,
    remember,
    value_of,
)
from gpucommons.sources.nvml.gpm import GpmSampler, GpmTarget
from gpucommons.sources.nvml.header import FieldValue
from gpucommons.sources.nvml.library import Function
from gpucommons.sources.nvml.processes import (
    LISTS,
    Instance,
    InstanceProcessList,
    ProcessList,
    ProcessRows,
    ProcessSample,
    ProcessUsage,
)
from gpucommons.sources.nvml.reader_state import Notes
from gpucommons.sources.nvml.table import ROWS

# Data over NVLink: the counters of all links together, and the rate of each link since the previous reading.
#
# One driver call for all of them. The first call requests every possible link; links that the GPU does not have are
# left out afterwards.

_ALL_LINKS = 2**32 - 1
_SENT, _RECEIVED = header.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, header.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
_PER_SECOND = 1e6
_NO_SUCH_LINK = library.SETTLED | {library.INVALID_ARGUMENT, library.NOT_FOUND}


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
        self._request((_ALL_LINKS, *range(header.NVML_NVLINK_MAX_LINKS)))

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
            elif sent.code == received.code == library.OK:
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


MIG_EVERY_S = 5.0
_MEMORY_TOTAL = GpuReadings._fields.index("memory_total_bytes")
_THROTTLE_MASK = GpuReadings._fields.index("throttle_mask")
_VERSIONS = (("_v3", True), ("_v2", True), ("", False))

log = logging.getLogger(__name__)


def _nothing() -> str | None:
    return None


class NvmlDevice:
    """`read` raises GpuLost when this GPU is gone and SessionLost when the driver is."""

    def __init__(self, handle: Handle, identity: GpuIdentity, since_wall_s: float, notes: Notes) -> None:
        self.identity = identity
        self._since_wall_s = since_wall_s
        self._handle = handle
        self._notes = notes
        self._slots: Slots = [None] * len(GpuReadings._fields)
        self._slow_due_s: float | None = None
        self._mig_due_s = 0.0
        self._mig_mode: mig.MigMode | None = None
        self._mig_slices: int | None = None
        self._mig_without_id = 0
        self._mig: mig.MigReadings | None = None
        self._gpm: GpmSampler | None = None
        self._nvlinks: NvLinkTraffic | None = None
        self._usage: ProcessUsage | None = None
        self._lists: list[tuple[int, ProcessList]] = []
        self._known_lists: dict[str, ProcessList] = {}
        self._rows = ProcessRows(notes.start_times)
        self._fast: list[Call] = []
        self._slow: list[Call] = []
        self._invokes: list[Invoke] = []
        self._stores: list[Store] = []
        self._watch = True
        self._rearrange = True
        self._failed_calls = 0

    @property
    def mig_pending(self) -> bool:
        """Whether a change of the MIG mode waits until no process, including this one, uses the GPU."""
        return self._mig_mode is not None and self._mig_mode.enabled != self._mig_mode.pending

    # -- the pass

    def read(self, now_s: float, slow_offset_s: float) -> Gpu:
        """Runs all calls that are due. The offsets spread the slow lanes of several GPUs over time."""
        self._failed_calls = 0
        if now_s >= self._mig_due_s or (self._mig is not None and self._mig.changed):
            self._mig_due_s = now_s + MIG_EVERY_S
            self._check_mig()
        if self._rearrange:
            self._arrange()
        self._run_fast()
        if self._slow_due_s is None or now_s >= self._slow_due_s:
            first = self._slow_due_s is None
            self._slow_due_s = now_s + (SLOW_EVERY_S if not first else SLOW_EVERY_S + slow_offset_s)
            self._run_slow()
        if self._failed_calls and self._failed_calls >= len(self._fast):
            # The GPU exists, but no call succeeds: report it as lost.
            raise library.GpuLost("unresponsive")
        return self._gpu(now_s)

    def _run_fast(self) -> None:
        """All calls of the fast lane. They are timed one by one only if together they exceed the budget of one."""
        if self._watch:
            self._watch = self._run_fast_timed()
            return
        began_s = self._notes.timer()
        returned = [invoke() for invoke in self._invokes]
        self._watch = self._notes.timer() - began_s > self._notes.fast_budget_s
        if any(returned):
            for call, code in zip(self._fast, returned, strict=True):
                self._take_over(call, code)
            return
        reasons = [store() for store in self._stores]
        if any(reasons):
            for reason in filter(None, reasons):
                self._record_drop(reason)

    def _run_fast_timed(self) -> bool:
        """The same, with the duration of each call. True while the calls must be timed."""
        budget_s = self._notes.fast_budget_s
        total_s = 0.0
        for call in self._fast:
            took_s = self._time_call(call)
            total_s += took_s
            if call.name in self._notes.keep_fast:
                continue
            call.history = remember(call.history, took_s > budget_s)
            if is_costly(call.history):
                self._move(call, Lane.SLOW, took_s)
        return total_s > budget_s or any(call.history for call in self._fast)

    def _run_slow(self) -> None:
        calm_s = self._notes.fast_budget_s / 2
        for call in self._slow:
            took_s = self._time_call(call)
            if call.home is Lane.FAST:
                call.history = remember(call.history, took_s < calm_s)
                if is_cheap_again(call.history):
                    self._move(call, Lane.FAST, took_s)

    def _time_call(self, call: Call) -> float:
        timer = self._notes.timer
        began_s = timer()
        code = call.invoke()
        took_s = timer() - began_s
        self._take_over(call, code)
        return took_s

    def _take_over(self, call: Call, code: int) -> None:
        if code:
            self._record_failure(call, code)
            return
        reason = call.store()
        if reason is not None:
            self._record_drop(reason)

    def _move(self, call: Call, to: Lane, took_s: float) -> None:
        call.history = 0
        self._notes.move(self.identity.uuid, call.name, to)
        self._rearrange = True
        log.info(
            "GPU %d: call %s takes %.1f ms and now runs in the %s lane",
            self.identity.index,
            call.name,
            took_s * 1000,
            to,
        )

    def _record_failure(self, call: Call, code: int) -> None:
        if code in library.SESSION_LOST:
            raise library.SessionLost(code)
        if code in library.GPU_LOST:
            raise library.GpuLost(library.name_of(code))
        call.clear()
        if code in library.SETTLED:
            self._notes.capabilities.refuse(self.identity.uuid, call.key)
            self._rearrange = True
        else:
            self._failed_calls += 1
            self._notes.fail(call.name, library.name_of(code))

    def _gpu(self, now_s: float) -> Gpu:
        return Gpu(
            self.identity,
            True,
            self._since_wall_s,
            "",
            GpuReadings._make(self._slots),
            None if self._gpm is None else self._gpm.reading,
            self._rows.read(self._lists, self._current_usage, self._slots[_MEMORY_TOTAL], self._record_drop),
            None if self._mig_mode is None else self._mig_mode.enabled,
            () if self._mig is None else self._mig.instances(),
            self._notes.events.record(self.identity.uuid),
            self._mig_slices,
            self._mig_without_id,
            None if self._nvlinks is None else self._nvlinks.rates,
            self._notes.clocks.see(self.identity.uuid, now_s, self._notes.wall(), self._slots[_THROTTLE_MASK]),
        )

    def _current_usage(self) -> dict[int, ProcessSample]:
        return {} if self._usage is None else self._usage.window.current(round(self._notes.wall() * 1e6))

    def _record_drop(self, reason: str) -> None:
        self._notes.drop(self.identity.uuid, reason)

    # -- MIG

    def _check_mig(self) -> None:
        mode = mig.read_mode(self._handle)
        enabled, was_enabled = mode is not None and mode.enabled, self._mig_is_enabled()
        self._mig_mode = mode
        if enabled != was_enabled:
            # MIG changes which calls the GPU supports: find out again.
            self._notes.capabilities.forget(self.identity.uuid)
            self._slots[:] = [None] * len(self._slots)
            self._slow_due_s = None
            self._rearrange = True
        before = () if self._mig is None else self._mig.layout
        layout, self._mig_without_id = mig.read_layout(self._handle, before) if enabled else mig.MigLayout()
        self._mig_slices = mig.read_slices(self._handle) if enabled else None
        if self._mig is not None and layout == before and not self._mig.changed:
            return
        if self._mig is not None or layout:
            self._change_layout(layout)

    def _mig_is_enabled(self) -> bool:
        return self._mig_mode is not None and self._mig_mode.enabled

    def _change_layout(self, layout: tuple[MigInstance, ...]) -> None:
        if self._mig is not None:
            self._mig.close()
        self._mig = mig.MigReadings(self._handle, layout, self.identity.gpm_supported) if layout else None
        self._rearrange = True
        profiles = ", ".join(instance.profile for instance in layout) or "none"
        log.info("GPU %d: MIG instances are now: %s", self.identity.index, profiles)

    # -- the calls

    def _arrange(self) -> None:
        """Prepare the calls that this GPU supports, and sort them into their lanes."""
        self._rearrange = False
        histories = {call.name: call.history for call in (*self._fast, *self._slow)}
        calls = [*self._gpm_calls(), *self._nvlink_calls(), *self._mig_calls(), *self._process_calls()]
        calls[:0] = self._table_calls()
        self._fast, self._slow = [], []
        for call in calls:
            call.history = histories.get(call.name, 0)
            lane = self._notes.lanes.lane(self.identity.uuid, call.name, call.home)
            (self._fast if lane is Lane.FAST else self._slow).append(call)
        self._invokes = [call.invoke for call in self._fast]
        self._stores = [call.store for call in self._fast]

    def _is_allowed(self, key: str) -> bool:
        return not self._notes.capabilities.refuses(self.identity.uuid, key)

    def _table_calls(self) -> list[Call]:
        calls = []
        for row in ROWS:
            if row.unless_gpm and self._gpm is not None:
                continue
            for name, maker in row.getters:
                key = f"{row.name}:{name}"
                function = library.function(name)
                if function is not None and self._is_allowed(key):
                    calls.append(Call(row.name, key, row.lane, *maker(function, self._handle, self._slots)))
                    break
        return calls

    def _gpm_calls(self) -> list[Call]:
        allowed = self.identity.gpm_supported and self._is_allowed("gpm")
        if allowed and self._gpm is None:
            self._gpm = GpmSampler(self._handle)
        elif not allowed and self._gpm is not None:
            self._gpm.close()
            self._gpm = None
        sampler = self._gpm
        if sampler is None:
            return []
        return [Call("gpm", "gpm", Lane.FAST, sampler.invoke, sampler.store, sampler.clear)]

    def gpm_targets(self) -> Iterator[tuple[str, GpmTarget]]:
        """This GPU and its MIG devices, by UUID, where they have GPM."""
        if self._gpm is not None:
            yield self.identity.uuid, GpmTarget(self._handle)
        if self._mig is not None and self._mig_has_gpm():
            for instance in self._mig.alone_in_gpu_instance():
                yield instance.uuid, GpmTarget(self._handle, instance.gpu_instance_id)

    def _mig_has_gpm(self) -> bool:
        return self.identity.gpm_supported and self._is_allowed("mig_gpm")

    def _nvlink_calls(self) -> list[Call]:
        function, key = library.function("nvmlDeviceGetFieldValues"), "nvlink_traffic"
        if function is None or not self._is_allowed(key):
            self._nvlinks = None
            return []
        traffic = self._nvlinks = self._nvlinks or NvLinkTraffic(function, self._handle, self._slots, self._notes.wall)
        return [Call(key, key, Lane.SLOW, traffic.invoke, traffic.store, traffic.clear)]

    def _mig_calls(self) -> list[Call]:
        view = self._mig
        if view is None:
            return []
        calls = []
        if self._is_allowed("mig_memory"):
            memory = (view.invoke_memory, _nothing, view.clear_memory)
            calls.append(Call("mig_memory", "mig_memory", Lane.FAST, *memory))
        if self._mig_has_gpm():
            gpm = (view.invoke_gpm, view.store_gpm, view.clear_gpm)
            calls.append(Call("mig_gpm", "mig_gpm", Lane.FAST, *gpm))
        return calls

    def _process_calls(self) -> list[Call]:
        """The lists, then the utilisation: it is skipped while the lists are empty."""
        calls = []
        self._lists.clear()
        for name, function, bit in LISTS:
            made = self._process_list(name, function)
            if made is not None:
                key, process_list = made
                self._lists.append((bit, process_list))
                calls.append(Call(name, key, Lane.FAST, process_list.invoke, process_list.store, process_list.clear))
        usage = self._process_usage()
        if usage is not None:
            key = "process_utilization"
            calls.append(Call(key, key, Lane.FAST, usage.invoke, usage.store, usage.clear))
        return calls

    def _process_list(self, name: str, function_name: str) -> tuple[str, ProcessList] | None:
        """The newest version of the list that the driver has: of the whole GPU or, if this process lacks the right to
        query a GPU with MIG enabled, of each instance."""
        for version, has_instances in _VERSIONS:
            function = library.function(function_name + version)
            if function is None:
                continue
            whole, instances = f"{name}{version}", f"{name}{version}:instances"
            if self._is_allowed(whole):
                if whole not in self._known_lists:
                    self._known_lists[whole] = ProcessList(function, has_instances, self._handle)
                return whole, self._known_lists[whole]
            if self._mig is not None and self._is_allowed(instances):
                if instances not in self._known_lists:
                    self._known_lists[instances] = InstanceProcessList(function, has_instances, self._each_instance)
                return instances, self._known_lists[instances]
        return None

    def _each_instance(self) -> Iterable[Instance]:
        return () if self._mig is None else self._mig.handles()

    def _process_usage(self) -> ProcessUsage | None:
        function = library.function("nvmlDeviceGetProcessUtilization")
        if function is None or not self._is_allowed("process_utilization"):
            self._usage = None
        elif self._usage is None:
            self._usage = ProcessUsage(
                function,
                self._handle,
                self._notes.wall,
                self._lists,
                self._record_drop,
            )
        return self._usage

    def close(self) -> None:
        """Free what the driver allocated, and drop the calls: they reference buffers and this object."""
        if self._gpm is not None:
            self._gpm.close()
        if self._mig is not None:
            self._mig.close()
        self._gpm = self._mig = self._usage = self._nvlinks = None
        for held in (self._fast, self._slow, self._invokes, self._stores, self._lists, self._known_lists):
            held.clear()
