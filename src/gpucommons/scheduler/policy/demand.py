"""Demand: how busy a client keeps the GPU when it runs alone, and the solo turns in which it is measured."""

from typing import Final

from gpucommons.scheduler.policy.state import NEVER, Client, GpuQueue

# A solo turn without a measurement ends after this long; after so many of them the demand stays unknown. It is longer
# where measurements are far apart: one must begin and end within the turn.
_SOLO_LIMIT_S: Final = 3.0
_SOLO_SPANS: Final = 2.5
_SOLO_TRIES: Final = 3
# Utilisation is valid for this long, or for so many times its span. One that spans too long a time is not used: no
# client can run alone for that long.
_BUSY_FRESH_S: Final = 5.0
_BUSY_FRESH_SPANS: Final = 3.0
_LONGEST_SPAN_S: Final = 6.0
_SMOOTHING: Final = 0.5


def sampled(gpu: GpuQueue, window_s: float, now: float) -> None:
    """The device's utilisation was measured. It is used if it spans a short enough time."""
    if window_s <= _LONGEST_SPAN_S:
        gpu.busy_span_s = window_s
        gpu.busy_until_s = now + max(_BUSY_FRESH_S, _BUSY_FRESH_SPANS * window_s)


def _solo_end_s(gpu: GpuQueue, now: float) -> float:
    return now + max(_SOLO_LIMIT_S, _SOLO_SPANS * gpu.busy_span_s)


def _unmeasured(client: Client) -> bool:
    return client.demand_milli is None and client.solo_tries < _SOLO_TRIES


def must_be_alone(client: Client) -> bool:
    """Whether the client's demand is to be measured in its next turn."""
    return client.refresh_demand or _unmeasured(client)


def measured_client(gpu: GpuQueue, window_s: float, now: float) -> Client | None:
    """The client that caused the last `window_s` of utilisation: the only one that ran, all that time; else None."""
    if len(gpu.running) != 1 or gpu.revoked:
        return None
    client = next(iter(gpu.running.values()))
    return client if max(client.turn_s, gpu.alone_s) <= now - window_s else None


def learn(gpu: GpuQueue, client: Client, busy_ratio: float, now: float) -> None:
    """A running client was measured."""
    measured = busy_ratio * 1000
    known = client.demand_milli
    smoothed = measured if known is None else known + _SMOOTHING * (measured - known)
    gpu.demand_milli += round(smoothed) - (known or 0)
    client.demand_milli = round(smoothed)
    client.demand_s = now
    client.refresh_demand = False
    client.solo_tries = 0
    if gpu.solo is client:
        end_solo(gpu)


def stalest(gpu: GpuQueue, refresh_s: float, now: float) -> Client | None:
    """The client to measure, under contention: a running one that was never measured, or once per `refresh_s` the
    one measured longest ago."""
    if gpu.solo is not None or len(gpu.running) + len(gpu.waiting) < 2:
        return None
    newcomer = next(filter(_unmeasured, gpu.running.values()), None)
    if newcomer is not None or now - gpu.refreshed_s < refresh_s:
        return newcomer
    client = min((*gpu.running.values(), *gpu.waiting.values()), key=lambda client: client.demand_s)
    return client if now - client.demand_s >= refresh_s else None


def begin_solo(gpu: GpuQueue, client: Client, now: float) -> None:
    """No client joins this one from now on. The time limit starts when it is alone."""
    gpu.solo = client
    gpu.solo_until_s = _solo_end_s(gpu, now) if len(gpu.running) <= 1 else NEVER


def turn_ended(gpu: GpuQueue, client: Client, now: float) -> None:
    """`client` no longer runs."""
    gpu.alone_s = now
    if gpu.solo is client:
        end_solo(gpu)
    elif gpu.solo is not None and len(gpu.running) == 1:
        gpu.solo_until_s = _solo_end_s(gpu, now)


def end_solo(gpu: GpuQueue) -> None:
    solo = gpu.solo
    if solo is None:
        return
    gpu.solo = None
    gpu.solo_until_s = NEVER
    if must_be_alone(solo):
        solo.refresh_demand = False
        solo.solo_tries += 1
