"""What an operator may do, and what is said in plain words."""

import time
from pathlib import Path

import pytest

from gpucommons.scheduler.policy.settings import GIB, Mode
from gpucommons.scheduler.protocol.wire import MessageType
from gpucommons.scheduler.service.control_socket import ControlError, SchedulerControl
from gpucommons.scheduler.service.explain import describe
from scheduler.served import Scripted, Served, serving

T = MessageType


def control_of(served: Served) -> SchedulerControl:
    return SchedulerControl(served.server)


def test_why_a_client_waits_for_memory(tmp_path: Path) -> None:
    with serving(tmp_path, default_gpu_memory_bytes=18 * GIB) as served:
        holder = Scripted(served.path).register("holder").report(12 * GIB).ask().granted()
        waiter = Scripted(served.path).register("big", "research").report(12 * GIB).ask()
        waiter.expect(T.WAIT_FOR_MEM)
        said = served.call(lambda: control_of(served).explain("research/big"))
        assert "needs 12.0 GiB, 4.2 GiB free under the safe limit" in said
        assert "0 ahead" in said
        assert "next turn in about 60 s" in said
        assert waiter.id in said
        assert "has been running for" in served.call(lambda: control_of(served).explain(holder.id))


def test_why_a_client_waits_for_its_share_its_turn_or_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, mode=Mode.SERIAL) as served:
        control = control_of(served)
        limited = Scripted(served.path).register("limited", core_limit_percent=10).ask().granted()
        limited.expect(T.DROP_LOCK)
        limited.release().ask()
        served.until(lambda reading: reading.clients[0].throttled)
        assert "its share of 10 % is used up" in served.call(lambda: control.explain("limited"))
        holder = Scripted(served.path).register("holder").ask().granted()
        waiter = Scripted(served.path).register("waiter").ask()
        served.until(lambda reading: any(row.wait and row.wait.why == "turn" for row in reading.clients))
        assert "one at a time" in served.call(lambda: control.explain("waiter"))
        waiter.close()
        idle = Scripted(served.path).register("idle")
        assert "asks for nothing" in served.call(lambda: control.explain(idle.id))
        holder.release()


def test_why_a_newcomer_waits_where_demand_is_measured(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        policy = served.server.policy
        gpu = next(iter(policy.gpus.values()))
        served.call(lambda: policy.sample_busy(gpu, 0.9, 0.5, time.monotonic()))
        holder = Scripted(served.path).register("holder").ask().granted()
        newcomer = Scripted(served.path).register("newcomer").ask()
        served.until(lambda reading: any(row.wait and row.wait.why == "solo" for row in reading.clients))
        said = served.call(lambda: control_of(served).explain(newcomer.id))
        assert "it has to run alone at first, so that its demand can be measured" in said
        holder.release()


def test_orders(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        control = control_of(served)
        client = Scripted(served.path).register("pod", "ns")
        served.call(control.off)
        client.expect(T.SCHED_OFF)
        assert "OFF" in next(describe(served.call(control.status)))
        assert "runs freely" in served.call(lambda: control.explain("pod"))
        served.call(control.on)
        client.expect(T.SCHED_ON)
        served.call(lambda: control.set_quantum(7.5))
        assert served.reading().fixed_quantum_s == 7.5
        assert served.call(lambda: control.set_limit("pod", memory="8Gi", core="25")) == [client.id]
        assert client.expect(T.UPDATE_LIMIT).memory_limit_bytes == 8 * GIB
        assert client.expect(T.UPDATE_CORE_LIMIT).core_limit_percent == 25
        assert served.row(client).core_quota_source == "set-limit"
        assert served.call(lambda: control.set_limit("later-pod", core="30")) == []
        assert served.row(Scripted(served.path).register("later-pod")).core_quota_percent == 30


def test_orders_that_cannot_be_followed(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        control = control_of(served)
        for order, complaint in (
            (lambda: control.set_quantum(0), "cannot be"),
            (lambda: control.set_limit("pod"), "nothing to set"),
            (lambda: control.set_limit("pod", memory="much"), "no amount of memory"),
            (lambda: control.set_limit("0123456789abcdef", core="5"), "no client 0123456789abcdef"),
            (lambda: control.explain("nobody"), "no client or pod 'nobody'"),
        ):
            with pytest.raises(ControlError, match=complaint):
                served.call(order)


def test_the_status_names_who_runs_and_who_waits(tmp_path: Path) -> None:
    with serving(tmp_path, mode=Mode.SERIAL) as served:
        holder = Scripted(served.path).register("holder", "ns").ask().granted()
        Scripted(served.path).register("waiter", "ns").ask()
        reading = served.until(lambda reading: len(reading.gpus[0].request_queue) == 0 and len(reading.clients) == 1)
        waiter = Scripted(served.path).register("waiter", "ns").ask()
        reading = served.until(lambda reading: len(reading.gpus[0].request_queue) == 1)
        said = "\n".join(describe(reading))
        assert f"running  ns/holder ({holder.id})" in said
        assert f"waiting  ns/waiter ({waiter.id})" in said
        assert "serial mode" in said
        assert "safe limit 14.4 GiB (assumed)" in said
