"""gpucommons_idle_*: holders of idle GPUs, the steps taken, and the channels that deliver messages to them."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.snapshot import Snapshot

HOLDERS = gauge("gpucommons_idle_holders", "Holders whose GPUs have been idle for at least idle.after_s.")
STEPS = counter("gpucommons_idle_steps_total", "Steps taken since the agent started: notify, remind and act.", "step")
CHANNEL_UP = gauge(
    "gpucommons_idle_channel_up", "State of a channel: 0 if its last message could not be delivered, else 1.", "channel"
)
WAITING = gauge("gpucommons_idle_messages_waiting", "Messages that wait for their delivery.", "channel")
MESSAGES = counter(
    "gpucommons_idle_messages_total",
    "Messages since the agent started, by outcome: delivered, failed (given up) or dropped (too many waited).",
    *("channel", "outcome"),
)
RECORDED = gauge(
    "gpucommons_idle_recorded", "State of the record of steps, which outlives the agent: 1 if it can be written."
)

CATALOGUE = (HOLDERS, STEPS, CHANNEL_UP, WAITING, MESSAGES, RECORDED)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.idle
    if reading is None:
        return
    yield HOLDERS.value(reading.idle_holders)
    yield STEPS.of(((step.value,), count) for step, count in reading.steps.items())
    yield CHANNEL_UP.of(((each.name,), int(each.failing_since_wall_s is None)) for each in reading.channels)
    yield WAITING.of(((each.name,), each.waiting) for each in reading.channels)
    yield MESSAGES.of(
        ((each.name, outcome), count)
        for each in reading.channels
        for outcome, count in (("delivered", each.delivered), ("failed", each.failed), ("dropped", each.dropped))
    )
    yield RECORDED.value(int(reading.recorded))
