"""The activity meter: what a GPU did between two moments; a driver that hangs costs only the measurements."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import pytest

from fakes.nvml.control import mig_device
from fakes.nvml.rig import Rig
from gpucommons.model.gpu import ActivityMeasurement, GpuActivity
from gpucommons.sources.nvml import library
from gpucommons.sources.nvml.activity_meter import ActivityMeter
from gpucommons.sources.source import SourceError
from waiting import until

# Longer than the interval of GPM's counters, below which nothing is measured.
PHASE_S = 0.12


def active(gpu: int, sm: float, tensor: float, dram: float) -> tuple[str, ...]:
    """Lines of the control file: the percentages of this GPU's GPM."""
    return f"set gpm.2 {gpu} {sm}", f"set gpm.5 {gpu} {tensor}", f"set gpm.10 {gpu} {dram}"


class Bench:
    """A meter whose reports the test can wait for."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.meter = ActivityMeter(rig.gpm_access)
        self.reported: list[ActivityMeasurement] = []
        self._heard = asyncio.Event()

    def start(self) -> None:
        self.meter.start(asyncio.get_running_loop(), self._on_measured)

    def _on_measured(self, measurement: ActivityMeasurement) -> None:
        self.reported.append(measurement)
        self._heard.set()

    @property
    def tokens(self) -> list[object]:
        return [measurement.token for measurement in self.reported]

    def of(self, token: object) -> list[ActivityMeasurement]:
        return [measurement for measurement in self.reported if measurement.token == token]

    async def measure(self, *uuids: str, token: object = "phase") -> list[ActivityMeasurement]:
        """One measurement of these GPUs at the same time. On a loaded machine one may come too late: begin again."""
        for _ in range(100):
            before = len(self.of(token))
            for uuid in uuids:
                self.meter.begin(uuid, token)
            await asyncio.sleep(PHASE_S)
            for uuid in uuids:
                self.meter.end(uuid, token)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    while len(self.of(token)) < before + len(uuids):
                        self._heard.clear()
                        await self._heard.wait()
                return self.of(token)[before:]
        raise AssertionError("nothing was measured")

    async def caught_up(self) -> None:
        """Wait until every request so far was carried out, and forget the measurement that shows it."""
        await self.measure(self.uuids[0], token="caught up")
        self.reported = [measurement for measurement in self.reported if measurement.token != "caught up"]

    @property
    def uuids(self) -> list[str]:
        return [gpu.identity.uuid for gpu in self.rig.read().gpus]


@pytest.fixture
def bench(rig: Rig) -> Iterator[Bench]:
    made = Bench(rig)
    yield made
    rig.fake.unsay("hang")
    made.meter.stop()
    until(lambda: "activity-meter" not in {thread.name for thread in threading.enumerate()}, "the thread has ended")


def run(bench: Bench, scenario: Callable[[str], Awaitable[None]]) -> None:
    """The scenario with a meter that has started, and the UUID of the first GPU."""

    async def whole() -> None:
        uuid = bench.uuids[0]
        bench.start()
        await scenario(uuid)

    asyncio.run(whole())


@pytest.mark.long
def test_it_measures_from_begin_to_end(bench: Bench) -> None:
    bench.rig.fake.say(*active(0, 78.9, 63.7, 23))

    async def scenario(uuid: str) -> None:
        (measured,) = await bench.measure(uuid, token=("a", 7))
        assert (measured.gpu_uuid, measured.token) == (uuid, ("a", 7))
        assert measured.activity == pytest.approx(GpuActivity(0.789, 0.637, 0.23, 0.0))
        assert measured.end_s - measured.begin_s >= 0.1

    run(bench, scenario)
    assert bench.rig.fake.counter("misuses") == 0


def test_two_gpus_at_once(bench: Bench) -> None:
    bench.rig.fake.say("gpus 2", *active(0, 78.9, 63.7, 23), *active(1, 6.8, 0.8, 0))

    async def scenario(_: str) -> None:
        found = {one.gpu_uuid: one.activity.sm for one in await bench.measure(*bench.uuids)}
        assert found == pytest.approx(dict(zip(bench.uuids, (0.789, 0.068), strict=True)))

    run(bench, scenario)


def test_the_readers_own_samples_are_not_disturbed(bench: Bench) -> None:
    bench.rig.fake.say(*active(0, 50, 40, 30))

    async def scenario(uuid: str) -> None:
        bench.rig.read_for(2)
        await bench.measure(uuid)
        gpm = bench.rig.gpu().gpm
        assert gpm is not None
        assert gpm.sm_ratio == 0.5

    run(bench, scenario)
    assert bench.rig.fake.counter("misuses") == 0


def test_only_the_measurement_that_was_begun_last_ends(bench: Bench) -> None:
    async def scenario(uuid: str) -> None:
        bench.meter.end(uuid, "never begun")
        bench.meter.begin(uuid, "not ended")
        bench.meter.begin(uuid, "second")
        await asyncio.sleep(PHASE_S)
        bench.meter.end(uuid, "not ended")
        await bench.caught_up()
        assert bench.tokens == []

    run(bench, scenario)


def test_an_end_with_another_token_leaves_the_measurement(bench: Bench) -> None:
    async def scenario(uuid: str) -> None:
        while not bench.reported:
            bench.meter.begin(uuid, "mine")
            await asyncio.sleep(PHASE_S)
            bench.meter.end(uuid, "another")
            bench.meter.end(uuid, "mine")
            await asyncio.sleep(0.02)
        assert bench.tokens == ["mine"]

    run(bench, scenario)


def test_what_is_shorter_than_the_counters_interval_is_not_measured(bench: Bench) -> None:
    async def scenario(uuid: str) -> None:
        bench.meter.begin(uuid, "short")
        bench.meter.end(uuid, "short")
        bench.meter.end(uuid, "short")
        await bench.caught_up()
        assert bench.tokens == []

    run(bench, scenario)


def test_a_missing_metric_is_missing_and_without_sm_there_is_no_measurement(bench: Bench) -> None:
    bench.rig.fake.say("gpus 2", "set gpm.2 0 nan", "set gpm.2 1 50", "set gpm.5 1 nan")

    async def scenario(without_sm: str) -> None:
        bench.meter.begin(without_sm, "without SM")
        await asyncio.sleep(PHASE_S)
        bench.meter.end(without_sm, "without SM")
        (measured,) = await bench.measure(bench.uuids[1])
        assert (measured.activity.sm, measured.activity.tensor) == (0.5, None)
        assert bench.tokens == ["phase"]

    run(bench, scenario)


# -- which GPUs


def test_a_gpu_without_gpm_is_not_supported(bench: Bench) -> None:
    bench.rig.fake.say("gpus 2", "set nvmlGpmQueryDeviceSupport 0 0")

    async def scenario(uuid: str) -> None:
        without, with_gpm = bench.uuids
        assert uuid == without
        assert not bench.meter.supports(without)
        assert bench.meter.supports(with_gpm)
        bench.meter.begin(without, "phase")
        await bench.measure(with_gpm)
        assert bench.rig.fake.calls("nvmlGpmSampleGet", gpu=0) == 0

    run(bench, scenario)


def test_gpm_that_the_driver_refuses_is_not_supported(bench: Bench) -> None:
    bench.rig.fake.say("fail nvmlGpmSampleGet 3")

    async def scenario(uuid: str) -> None:
        bench.rig.read_for(2)
        assert not bench.meter.supports(uuid)

    run(bench, scenario)


def test_without_a_reader_nothing_is_supported(rig: Rig) -> None:
    assert not ActivityMeter(rig.gpm_access).supports("GPU-0")


def test_a_mig_device_is_measured_by_its_gpu_instance(bench: Bench) -> None:
    alone, first, second = mig_device(0, 1), mig_device(0, 2, ci=0), mig_device(0, 2, ci=1)
    bench.rig.fake.say("mig_mode 0 1 1", alone, first, second, *active(0, 25, 12, 6))

    async def scenario(_: str) -> None:
        uuids = [line.split()[-1] for line in (alone, first, second)]
        # The GPU instance of the last two reports what both do.
        assert [bench.meter.supports(uuid) for uuid in uuids] == [True, False, False]
        (measured,) = await bench.measure(uuids[0])
        assert measured.activity == GpuActivity(0.25, 0.12, 0.06, 0.0)
        assert bench.rig.fake.calls("nvmlGpmMigSampleGet") > 0
        # Its buffers are freed once it is gone and anything else is measured.
        bench.rig.fake.replace(*active(0, 25, 12, 6))
        bench.rig.read_for(6)
        assert not bench.meter.supports(uuids[0])
        await bench.measure(*bench.uuids)
        assert bench.rig.fake.counter("gpm_samples") == 4

    run(bench, scenario)
    assert bench.rig.fake.counter("stale_mig_uses") == 0


def test_a_lost_gpu_is_not_measured_and_the_other_is(bench: Bench) -> None:
    bench.rig.fake.say("gpus 2")

    async def scenario(lost: str) -> None:
        (other,) = set(bench.uuids) - {lost}
        await bench.measure(lost, other)
        del bench.reported[:]
        bench.meter.begin(lost, "lost")
        bench.rig.fake.say("lose 0")
        await asyncio.sleep(PHASE_S)
        bench.meter.end(lost, "lost")
        await bench.measure(other, token="other")
        bench.rig.read()
        assert not bench.meter.supports(lost)
        assert bench.tokens == ["other"]

    run(bench, scenario)


# -- the reader's session


def test_nothing_is_measured_across_two_sessions(bench: Bench) -> None:
    """A restart of the session, here for a GPU that came back, is not held up and frees the meter's samples."""
    fake = bench.rig.fake
    fake.say("gpus 2", "lose 1")

    async def scenario(uuid: str) -> None:
        await bench.measure(uuid)
        del bench.reported[:]
        fake.unsay("lose")
        bench.meter.begin(uuid, "before")
        await asyncio.sleep(PHASE_S)
        reading = bench.rig.read_for(12)
        assert (reading.connections, reading.present, fake.counter("references")) == (2, 2, 1)
        bench.meter.end(uuid, "before")
        await bench.caught_up()
        assert bench.tokens == []

    run(bench, scenario)
    assert fake.counter("misuses") == 0


def test_while_the_driver_is_gone_nothing_is_supported(bench: Bench) -> None:
    fake = bench.rig.fake

    async def scenario(uuid: str) -> None:
        await bench.measure(uuid)
        fake.say("fail * 9", "fail nvmlInit 9")
        with pytest.raises(SourceError):
            bench.rig.read()
        assert not bench.meter.supports(uuid)
        assert (fake.counter("references"), fake.counter("gpm_samples")) == (0, 0)
        fake.unsay("fail")
        bench.rig.read_for(2)
        await bench.measure(uuid)

    run(bench, scenario)


# -- a call that hangs


def test_while_a_call_hangs_the_meter_is_silent_and_late_requests_are_dropped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpucommons.sources.nvml.activity_meter._HUNG_S", 0.2)
    fake = bench.rig.fake

    async def scenario(uuid: str) -> None:
        await bench.measure(uuid)
        del bench.reported[:]
        fake.say("hang nvmlGpmSampleGet")
        bench.meter.begin(uuid, 0)
        until(lambda: not bench.meter.supports(uuid), "the meter hangs")
        samples = fake.calls("nvmlGpmSampleGet")
        # The loop goes on; what is asked meanwhile does not pile up.
        for phase in range(1, 1000):
            bench.meter.begin(uuid, phase)
        fake.unsay("hang")
        await bench.caught_up()
        assert bench.meter.supports(uuid)
        assert bench.tokens == []
        assert fake.calls("nvmlGpmSampleGet") - samples < 300

    run(bench, scenario)


def test_gpm_that_is_slow_is_measured_still(bench: Bench) -> None:
    """The scheduler keeps it in the fast lane; another call that is as slow moves, which shows that both were timed."""
    bench.rig.keep_fast, bench.rig.fast_budget_s = frozenset({"gpm"}), 0.001
    slow = ("slow nvmlGpmSampleGet 4000", "slow nvmlDeviceGetTotalEnergyConsumption 4000")
    bench.rig.fake.say(*active(0, 78.9, 63.7, 23), *slow)
    moved = {move.call for move in bench.rig.read_for(8).slow_calls}
    assert "energy" in moved
    assert "gpm" not in moved

    async def scenario(uuid: str) -> None:
        (measured,) = await bench.measure(uuid)
        assert measured.activity.sm == pytest.approx(0.789)

    run(bench, scenario)


def test_a_last_sample_that_took_long_is_not_reported(bench: Bench) -> None:
    fake = bench.rig.fake

    async def scenario(uuid: str) -> None:
        bench.meter.begin(uuid, "slow")
        await asyncio.sleep(PHASE_S)
        fake.say("slow nvmlGpmSampleGet 50000")
        bench.meter.end(uuid, "slow")
        bench.meter.end(uuid, "slow")
        samples = fake.calls("nvmlGpmSampleGet")
        until(lambda: fake.calls("nvmlGpmSampleGet") > samples, "the sample is being taken")
        fake.unsay("slow")
        await bench.caught_up()
        assert bench.tokens == []

    run(bench, scenario)


def test_the_session_does_not_end_under_a_call_that_has_not_returned(bench: Bench) -> None:
    fake = bench.rig.fake

    async def scenario(uuid: str) -> None:
        fake.say("hang nvmlGpmMetricsGet")
        bench.meter.begin(uuid, "phase")
        await asyncio.sleep(PHASE_S)
        bench.meter.end(uuid, "phase")
        until(lambda: fake.calls("nvmlGpmMetricsGet"), "the meter compares its samples")
        bench.rig.source.close()
        assert fake.counter("references") == 1
        fake.unsay("hang")
        await bench.caught_up()
        bench.rig.source.close()
        assert (fake.counter("references"), fake.counter("gpm_samples")) == (0, 0)

    run(bench, scenario)


@pytest.mark.parametrize("hangs", [False, True])
def test_stop_returns_at_once_and_nothing_is_reported_afterwards(bench: Bench, hangs: bool) -> None:
    fake = bench.rig.fake

    async def scenario(uuid: str) -> None:
        bench.meter.begin(uuid, "phase")
        await asyncio.sleep(PHASE_S)
        if hangs:
            fake.say("hang nvmlGpmMetricsGet")
        bench.meter.end(uuid, "phase")
        bench.meter.stop()
        fake.unsay("hang")
        # The reader's own two remain.
        until(lambda: fake.counter("gpm_samples") == 2, "the samples are freed")
        await asyncio.sleep(0)
        assert bench.reported == []

    run(bench, scenario)


def test_a_loop_that_has_ended_is_not_an_error(bench: Bench) -> None:
    """The agent's loop may end while a measurement is under way: the thread frees its samples and ends."""

    async def scenario(uuid: str) -> None:
        bench.meter.begin(uuid, "phase")
        await asyncio.sleep(PHASE_S)
        bench.meter.end(uuid, "phase")

    run(bench, scenario)
    bench.meter.stop()
    # The reader's own two remain.
    until(lambda: bench.rig.fake.counter("gpm_samples") == 2, "the samples are freed")


def test_two_threads_are_never_in_gpm_calls_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real driver crashes the process then."""
    inside, most = 0, 0
    find = library.function

    def watched(name: str) -> library.Function | None:
        call = find(name)
        if call is None or not name.startswith("nvmlGpm") or "Alloc" in name or "Free" in name:
            return call

        def watch(*arguments: object) -> int:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            code = call(*arguments)
            inside -= 1
            return code

        return watch

    monkeypatch.setattr(library, "function", watched)
    bench.rig.fake.say("slow nvmlGpmSampleGet 3000", "slow nvmlGpmMetricsGet 3000")

    async def scenario(uuid: str) -> None:
        reading = threading.Thread(target=lambda: [bench.rig.read() for _ in range(60)])
        reading.start()
        while reading.is_alive():
            bench.meter.begin(uuid, "phase")
            await asyncio.sleep(0.01)
            bench.meter.end(uuid, "phase")

    run(bench, scenario)
    assert most == 1
