"""The scheduler on a real socket, as its clients and nvsharectl see it."""

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from gpucommons.base.processes import start_ticks
from gpucommons.base.unix_listener import ListenError
from gpucommons.cli.scheduler_view import explanations, status_lines
from gpucommons.faces.documents.turns import turns_of
from gpucommons.model.process_identity import ProcessKey
from gpucommons.scheduler.policy.devices import GpuFacts
from gpucommons.scheduler.policy.quotas import PodName, QuotaRule, QuotaValues
from gpucommons.scheduler.policy.state import GIB, Fence, Mode
from gpucommons.scheduler.protocol.wire import MessageType, encode
from gpucommons.scheduler.service.state_reader import ProcessNames
from scheduler.served import Scripted, Served, control, serving

T = MessageType


def test_a_client_registers_and_gets_its_turn(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        client = Scripted(served.path).register("train-0", "research").ask().granted()
        row = served.row(client)
        assert (row.pod, row.namespace, row.standing) == ("train-0", "research", "running")
        assert (row.pid, row.uid, row.gid) == (os.getpid(), os.getuid(), os.getgid())
        assert served.gpu().running == (client.id,)
        client.release()
        served.until(lambda reading: not reading.gpus[0].running)
        counts = served.reading().messages
        assert [counts[name] for name in ("REGISTER", "SCHED_ON", "REQ_LOCK", "LOCK_OK", "LOCK_RELEASED")] == [1] * 5
        assert len(counts) == 14


def test_both_versions_and_a_control_frame_share_one_socket(tmp_path: Path) -> None:
    with serving(tmp_path, mode=Mode.SERIAL) as served:
        old, new = Scripted(served.path, 1).register("old"), Scripted(served.path, 2).register("new")
        old.ask().granted()
        new.ask()
        for version in (1, 2):
            control(served.path, T.SET_TQ, b"1", version)
        old.expect(T.DROP_LOCK)
        old.release()
        new.granted()
        control(served.path, T.SCHED_OFF, version=1)
        for client in (old, new):
            assert client.expect(T.SCHED_OFF).data == client.id
        control(served.path, T.SCHED_ON)
        for client in (old, new):
            client.expect(T.SCHED_ON)
        assert {row.protocol_version for row in served.reading().clients} == {1, 2}


def test_waiters_are_served_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    with serving(tmp_path, mode=Mode.SERIAL) as served:
        clients = [Scripted(served.path).register(f"pod-{number}") for number in range(5)]
        for number, client in enumerate(clients):
            client.ask()
            served.until(lambda reading, n=number: reading.messages["REQ_LOCK"] == n + 1)  # type: ignore[misc]
        for place, client in enumerate(clients):
            client.granted()
            assert all(later.nothing() for later in clients[place + 1 :])
            client.release()


def test_frames_may_be_split_and_joined_anywhere(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        for version in (1, 2):
            client = Scripted(served.path, version)
            frames = encode(client.version, T.REGISTER, pod="split") + encode(client.version, T.REQ_LOCK)
            for byte in frames:
                client.socket.sendall(bytes([byte]))
            client.expect(T.SCHED_ON)
            client.granted()
            client.socket.sendall(encode(client.version, T.LOCK_RELEASED) + encode(client.version, T.REQ_LOCK))
            client.granted()


def test_memory_decides_which_clients_run_together(tmp_path: Path) -> None:
    with serving(tmp_path, default_gpu_memory_gb=10.0) as served:
        first, small, big = (Scripted(served.path).register(name) for name in ("first", "small", "big"))
        first.report(4 * GIB).ask().granted()
        small.report(4 * GIB).ask().granted()
        big.report(6 * GIB).ask().expect(T.WAIT_FOR_MEM)
        gpu = served.gpu()
        assert gpu.wait_queue == (big.id,)
        assert gpu.running_memory_bytes == 8 * GIB
        wait = served.row(big).wait
        assert wait is not None
        assert (wait.reason, wait.room_bytes) == ("memory", 1 * GIB)
        first.report(1 * GIB)
        small.report(1 * GIB)
        big.expect(T.MEM_AVAILABLE)
        big.granted()
        assert (served.gpu().wait_for_mem, served.gpu().mem_available) == (1, 1)


def test_running_clients_that_outgrow_the_memory_go_back_to_one_at_a_time(tmp_path: Path) -> None:
    with serving(tmp_path, default_gpu_memory_gb=10.0) as served:
        first, second = (Scripted(served.path).register(name).ask().granted() for name in "ab")
        first.report(5 * GIB)
        second.report(5 * GIB)
        second.expect(T.DROP_LOCK)
        assert served.gpu().overloaded
        assert served.gpu().drop_lock["memory"] == 1
        second.release().ask()
        second.expect(T.WAIT_FOR_MEM)
        assert not served.gpu().overloaded
        first.report(2 * GIB)
        second.expect(T.MEM_AVAILABLE)
        second.granted()


def test_garbage_closes_that_connection_only_and_is_counted(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        good = Scripted(served.path).register().ask().granted()
        for garbage, reason in (
            (b"GET / HTTP/1.1\r\n", "unexpected_first_frame"),
            (encode(2, T.REGISTER, pod="x") + b"\xff" * 659, "unknown_type"),
            (encode(2, T.REGISTER, pod="x") + encode(2, T.LOCK_OK), "unexpected_type"),
            (encode(1, T.REGISTER, pod="x") + encode(1, T.MEM_UPDATE), "unexpected_type"),
            (encode(2, T.SCHED_OFF), "no_control_id"),
            (encode(2, T.SET_TQ, id=0xBEEF, data=b"-5"), "bad_quantum"),
        ):
            bad = Scripted(served.path)
            bad.socket.sendall(garbage)
            assert bad.closed()
            served.until(lambda reading, why=reason: reading.disconnects.get(why, 0) > 0)  # type: ignore[misc]
        good.release().ask().granted()
        assert served.reading().on


def test_repeats_are_harmless_and_counted(tmp_path: Path) -> None:
    with serving(tmp_path, mode=Mode.SERIAL) as served:
        holder, waiter = (Scripted(served.path).register(name) for name in "ab")
        holder.ask().granted()
        holder.ask().granted()
        waiter.ask().ask().ask().release()
        waiter.send(T.REGISTER, pod="again")
        assert waiter.expect(T.SCHED_ON).data == waiter.id
        holder.release().release()
        waiter.granted()
        refused = served.until(lambda reading: reading.refusals.get("release_out_of_turn", 0) == 2).refusals
        assert refused["repeated_request"] == 3
        assert refused["repeated_register"] == 1
        assert waiter.nothing()


def test_a_client_that_does_not_stop_gets_drop_lock_again_and_is_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("evaluation", "transitions"):
        monkeypatch.setattr(f"gpucommons.scheduler.policy.{module}.DROP_RESEND_S", 0.05)
    with serving(tmp_path, revoke_after_s=0.5, mode=Mode.SERIAL) as served:
        deaf, other = (Scripted(served.path).register(name) for name in ("deaf", "other"))
        served.call(lambda: served.server.set_quantum(0.1))
        deaf.ask().granted()
        other.ask().granted()
        assert served.row(deaf).revoked
        drops = served.gpu().drop_lock
        assert drops["quantum"] > 1
        assert drops["revoked"] == 1
        for _ in range(sum(drops.values())):
            deaf.expect(T.DROP_LOCK)
        assert deaf.nothing()
        deaf.release()
        served.until(lambda reading: not any(row.revoked for row in reading.clients))
        assert served.reading().refusals["release_after_revocation"] == 1


def test_status_and_explain_name_the_client_that_does_not_release(tmp_path: Path) -> None:
    with serving(tmp_path, revoke_after_s=0.2, mode=Mode.SERIAL) as served:
        facts = GpuFacts("GPU-a", 0, 16 * GIB, process_bytes={os.getpid(): 12 * GIB})
        served.call(lambda: served.server.update_gpus([facts]))
        served.call(lambda: served.server.set_quantum(0.05))
        deaf = Scripted(served.path).register("deaf", "ns").report((1 << 64) - 1).ask().granted()
        served.call(lambda: served.server.update_gpus([facts]))
        waiter = Scripted(served.path).register("waiter", "ns").report(6 * GIB).ask()
        reading = served.until(lambda reading: any(row.revoked for row in reading.clients))
        turns: Any = turns_of(reading, {})
        culprit = (
            f"ns/deaf ({deaf.id}), pid {os.getpid()}, uid {os.getuid()}: it does not release; it holds 12.0 GiB, "
            "and reported more memory than the GPU has"
        )
        assert f"  revoked  {culprit}" in list(status_lines(turns))
        (line,) = explanations(turns, waiter.id)
        assert line.endswith(f"; unresponsive: {culprit}.")


def test_a_fence_closes_the_socket_of_the_revoked(tmp_path: Path) -> None:
    with serving(tmp_path, revoke_after_s=0.1, mode=Mode.SERIAL, fence=Fence.DISCONNECT) as served:
        deaf, other = (Scripted(served.path).register(name) for name in ("deaf", "other"))
        served.call(lambda: served.server.set_quantum(0.05))
        deaf.ask().granted()
        other.ask().granted()
        assert deaf.closed()
        served.until(lambda reading: reading.disconnects.get("fenced") == 1)


def test_a_process_that_was_revoked_twice_may_not_connect_again(tmp_path: Path) -> None:
    with serving(tmp_path, revoke_after_s=0.1, mode=Mode.SERIAL) as served:
        served.call(lambda: served.server.set_quantum(0.05))
        other = Scripted(served.path).register("other")
        for turn in range(2):
            deaf = Scripted(served.path, version=1).register()
            deaf.ask().granted()
            other.ask().granted()
            served.until(lambda reading, turn=turn: reading.gpus[0].drop_lock["revoked"] == turn + 1)  # type: ignore[misc]
            deaf.close()
            other.release()
        again = Scripted(served.path, version=1)
        again.send(T.REGISTER)
        assert again.closed()
        assert served.until(lambda reading: reading.disconnects.get("fenced", 0) > 0)
        other.ask().granted()


def test_off_lets_every_client_run_and_on_schedules_again(tmp_path: Path) -> None:
    with serving(tmp_path, mode=Mode.SERIAL) as served:
        holder, waiter = (Scripted(served.path).register(name) for name in "ab")
        holder.ask().granted()
        waiter.ask()
        served.until(lambda reading: len(reading.gpus[0].request_queue) == 1)
        served.call(lambda: served.server.switch(False))
        for client in (holder, waiter):
            client.expect(T.SCHED_OFF)
            client.ask().granted()
        late = Scripted(served.path)
        late.send(T.REGISTER, pod="late")
        late.expect(T.SCHED_OFF)
        served.call(lambda: served.server.switch(True))
        for client in (holder, waiter, late):
            client.expect(T.SCHED_ON)
        holder.ask().granted()


def test_limits_reach_the_client(tmp_path: Path) -> None:
    rules = (QuotaRule(pod="lim*", quota=QuotaValues(8 * GIB, 25)),)
    with serving(tmp_path, rules) as served:
        limited = Scripted(served.path)
        limited.send(T.REGISTER, pod="limited", namespace="ns")
        answer = limited.expect(T.SCHED_ON)
        assert answer.core_limit_percent == 25
        limited.id = answer.data
        assert limited.expect(T.UPDATE_LIMIT).memory_limit_bytes == 8 * GIB
        assert served.row(limited).memory_quota_source == "config"
        identify(served, PodName("ns", "limited"))
        served.call(lambda: served.server.set_annotations({("ns", "limited"): QuotaValues(4 * GIB, None)}))
        assert limited.expect(T.UPDATE_LIMIT).memory_limit_bytes == 4 * GIB
        row = served.row(limited)
        assert (row.memory_quota_source, row.core_quota_source, row.core_quota_percent) == ("annotation", "config", 25)
        served.call(lambda: served.server.set_limit("ns/limited", QuotaValues(None, 50)))
        assert limited.expect(T.UPDATE_CORE_LIMIT).core_limit_percent == 50
        asking = Scripted(served.path).register("free", "ns", memory_limit_bytes=GIB, core_limit_percent=10)
        assert served.row(asking).core_quota_source == "env"


def identify(served: Served, pod: PodName) -> None:
    """This process, which all clients here belong to, is in a pod."""
    key = ProcessKey(os.getpid(), start_ticks(Path("/proc/self/stat").read_bytes()))
    served.call(lambda: served.server.set_names(ProcessNames(pods={key: pod})))


def test_the_pod_that_a_process_in_no_pod_names_counts_for_nothing_where_pods_are_known(tmp_path: Path) -> None:
    rules = (QuotaRule(namespace="course-*", quota=QuotaValues(core_percent=25)),)
    with serving(tmp_path, rules) as served:
        before = Scripted(served.path).register("a", "course-1")
        assert served.row(before).core_quota_percent == 25, "without Kubernetes it is a name like any other"
        served.call(lambda: served.server.set_annotations({("staff", "b"): QuotaValues(core_percent=90)}))
        assert before.expect(T.UPDATE_CORE_LIMIT).core_limit_percent == 100
        claiming = Scripted(served.path).register("b", "staff")
        assert served.row(claiming).core_quota_percent == 100
        assert served.call(lambda: served.server.set_limit("staff/b", QuotaValues(None, 50))) == 0
        identify(served, PodName("staff", "b"))
        assert before.expect(T.UPDATE_CORE_LIMIT).core_limit_percent == 50, "the kernel and Kubernetes know its pod"


def test_every_name_of_a_gpu_is_resolved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    facts = [GpuFacts("GPU-aaaa", 0, 80 * GIB), GpuFacts("GPU-bbbb", 1, 40 * GIB, mig=("MIG-1", "MIG-2"))]
    with serving(tmp_path) as served:
        early = Scripted(served.path).register("early")
        clients = [early]
        served.call(lambda: served.server.update_gpus(facts))
        assert served.row(early).gpu_uuid == "GPU-aaaa"
        for called, uuid in (
            ("", "GPU-aaaa"),
            ("all", "GPU-aaaa"),
            ("1", "GPU-bbbb"),
            ("GPU-bbbb,GPU-aaaa", "GPU-bbbb"),
            ("GPU-b", "GPU-bbbb"),
            ("MIG-2", "MIG-2"),
            ("1:0", "MIG-1"),
            ("default", "GPU-aaaa"),
            ("MIG-3", "GPU-aaaa"),
            ("7", "GPU-aaaa"),
            ("²", "GPU-aaaa"),
        ):
            clients.append(Scripted(served.path).register(gpu=called))
            assert served.row(clients[-1]).gpu_uuid == uuid
        gpus = {gpu.uuid: gpu for gpu in served.reading().gpus}
        assert gpus["GPU-bbbb"].safe_limit_bytes == 36 * GIB
        assert gpus["GPU-aaaa"].total_memory_measured
        assert not gpus["MIG-1"].present
        assert served.reading().refusals["unknown_gpu_name"] == 3, "those that no GPU has"
        lines = [record.getMessage() for record in caplog.records if "counts as unnamed" in record.getMessage()]
        assert lines == [f"no GPU has the name 'MIG-3' of a client of pid {os.getpid()}, uid 0: it counts as unnamed"]


def test_a_client_of_an_unknown_gpu_has_no_exclusive_turn_next_to_another(tmp_path: Path) -> None:
    """XPUShare's library names the GPU `default` where no device variable is set."""
    with serving(tmp_path, mode=Mode.SERIAL) as served:
        served.call(lambda: served.server.update_gpus([GpuFacts("GPU-aaaa", 0), GpuFacts("GPU-bbbb", 1)]))
        holder = Scripted(served.path).register(gpu="0").ask().granted()
        others = [Scripted(served.path).register(gpu=name).ask() for name in ("default", "GPU-cccc", "")]
        served.until(lambda reading: sum(row.standing == "waiting" for row in reading.clients) == len(others))
        holder.release()
        for client in others:
            client.granted().release()
        late = Scripted(served.path).register(gpu="GPU-cccc").ask().granted()
        served.call(lambda: served.server.update_gpus([GpuFacts("GPU-aaaa", 0), GpuFacts("GPU-cccc", 2)]))
        assert served.row(late).gpu_uuid == "GPU-cccc", "it moves when its GPU becomes known"


def test_the_queue_of_a_mig_device_has_the_memory_of_the_device(tmp_path: Path) -> None:
    def fact(**sizes: int) -> GpuFacts:
        return GpuFacts(
            "GPU-aaaa", 0, 80 * GIB, mig=("MIG-1", "MIG-2"), mig_bytes={f"MIG-{n[1:]}": sizes[n] for n in sizes}
        )

    with serving(tmp_path) as served:
        served.call(lambda: served.server.update_gpus([fact(m1=10 * GIB)]))
        clients = [Scripted(served.path).register(gpu=name) for name in ("0:0", "MIG-2")]
        assert served.row(clients[0]).gpu_uuid == "MIG-1"
        limits = {gpu.uuid: (gpu.total_memory_measured, gpu.safe_limit_bytes) for gpu in served.reading().gpus}
        assert limits["MIG-1"] == (True, 9 * GIB), "from the first moment"
        assert not limits["MIG-2"][0]
        served.call(lambda: served.server.update_gpus([fact(m1=10 * GIB, m2=20 * GIB)]))
        limits = {gpu.uuid: (gpu.total_memory_measured, gpu.safe_limit_bytes) for gpu in served.reading().gpus}
        assert limits["MIG-2"] == (True, 18 * GIB)


def test_the_queue_of_an_absent_gpu_is_removed_with_its_last_client(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        served.call(lambda: served.server.update_gpus([GpuFacts("GPU-aaaa", 0), GpuFacts("GPU-bbbb", 1)]))
        clients = [Scripted(served.path).register(gpu=name) for name in ("1", "GPU-cccc")]
        served.call(lambda: served.server.update_gpus([GpuFacts("GPU-aaaa", 0)]))
        assert {gpu.uuid for gpu in served.reading().gpus} == {"GPU-aaaa", "GPU-bbbb"}
        for client in clients:
            client.close()
        served.until(lambda reading: [gpu.uuid for gpu in reading.gpus] == ["GPU-aaaa"])


def test_an_unknown_admin_group_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ListenError, match="admin_group 'no-such-group'"),
        serving(tmp_path, admin_group="no-such-group"),
    ):
        pass


def test_every_user_may_connect_and_the_directory_is_not_listable(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        path = Path(served.path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o722
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o711
    assert not path.exists()


def test_a_dead_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "nvshare" / "s.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with serving(tmp_path) as served:
        Scripted(served.path).register()
        with pytest.raises(ListenError, match=f"pid {os.getpid()}"), serving(tmp_path):
            pass
        Scripted(served.path).register()
    path.write_text("precious")
    with pytest.raises(ListenError, match="not a socket"), serving(tmp_path):
        pass
    assert path.read_text() == "precious"


def test_stopping_closes_every_connection(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        clients = [Scripted(served.path).register() for _ in range(3)] + [Scripted(served.path)]
        served.until(lambda reading: reading.connections == 4)
    assert all(client.closed() for client in clients)


def test_the_expected_wait_adds_up_along_the_queue(tmp_path: Path) -> None:
    with serving(tmp_path, mode=Mode.SERIAL) as served:
        holder = Scripted(served.path).register("holder").report(4 * GIB).ask().granted()
        waiters = [Scripted(served.path).register(f"waiter-{gib}").report(gib * GIB) for gib in (8, 0, 2)]
        for waiter in waiters:
            waiter.ask()
            served.until(lambda _, waiter=waiter: served.row(waiter).wait is not None)  # type: ignore[misc]
        waits = [served.row(waiter).wait for waiter in waiters]
        # A turn is 5 s for each GiB that is to be moved, the larger of the two, and 10 s at least.
        assert [wait and wait.ahead for wait in waits] == [0, 1, 2]
        assert [wait and wait.expected_s for wait in waits] == pytest.approx([40, 80, 90], abs=5)
        assert served.gpu().running == (holder.id,)
