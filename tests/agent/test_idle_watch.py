"""Idle holders in the agent, driven with snapshots: which holder gets what, and what survives a restart."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attribution.builders import gpu
from gpucommons.agent.idle.watch import IdleWatch
from gpucommons.config.accounts import IdleRuleSettings, IdleSettings, LeasesSettings, MailSettings, WebhookSettings
from gpucommons.config.option import ConfigError
from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.config.settings import Settings
from gpucommons.model.idle import IdleReading, IdleStep
from gpucommons.model.leases import Lease, LeaseRequest, LeasesReading
from gpucommons.model.ownership import PodPlace
from gpucommons.model.snapshot import Readings
from gpucommons.model.workloads import DeviceId, Pod, PodDevicesReading, PodReading
from gpucommons.owners.holding_stage import AllocationStage
from gpucommons.owners.slot_states import IdleWindow
from holding.test_allocations import docker, given_to, managed, process, readings
from played import snapshot_of
from receivers import hook, silent_server
from waiting import until

IDLE = IdleSettings(after_s=100, remind_after_s=100, act_after_s=200)
START_S = 100_000.0


class Watched:
    """One agent after the other on a node whose clocks the test sets. The same state directory serves all."""

    def __init__(self, settings: Settings, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        monkeypatch.setenv("STATE_DIRECTORY", str(directory))
        self.settings, self.directory = settings, directory
        self.now_s = START_S
        self.parked: list[frozenset[int]] = []
        self.ended: list[str] = []
        self.problem = ""
        self._start()

    def _start(self) -> None:
        self.watch = IdleWatch(self.settings, None, "node-1", self._park, self._end)
        asyncio.run(self.watch.start())
        self.stage = AllocationStage(
            idle_window=IdleWindow(100.0), idle_before=self.watch.idle_before, monotonic=lambda: self.now_s
        )

    def _park(self, pids: Any, done: Any) -> None:
        self.parked.append(frozenset(pids))
        done(self.problem)

    def _end(self, id: str, why: str, done: Any) -> None:
        self.ended.append(f"{id}: {why}")
        done(self.problem)

    def stop(self) -> None:
        asyncio.run(self.watch.stop())

    def restart(self) -> None:
        self.stop()
        self._start()

    def observe(self, given: Readings, elapsed_s: float = 0.0) -> IdleReading:
        """Every ten seconds of this time."""
        for _ in range(max(1, round(elapsed_s / 10))):
            self.now_s += min(10.0, elapsed_s)
            self.watch.observe(snapshot_of(self.stage(given), self.now_s - 1000.0))
            # Files and actions are done on a thread, in order.
            done = threading.Event()
            self.watch._thread.submit(done.set)
            assert done.wait(30)
        return self.reading()

    def reading(self) -> IdleReading:
        (source,) = self.watch.sources()
        found = source.read()
        assert isinstance(found, IdleReading)
        return found

    def types(self) -> list[str]:
        return [event.type.removeprefix("idle.") for event in reversed(self.reading().events)]


@contextmanager
def watched(
    monkeypatch: pytest.MonkeyPatch, directory: Path, idle: IdleSettings = IDLE, **sections: Any
) -> Iterator[Watched]:
    made = Watched(replace(Settings(), idle=idle, **sections), monkeypatch, directory)
    try:
        yield made
    finally:
        made.stop()


def test_without_a_channel_the_message_is_kept_for_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    held = managed("lab", "alice", "0")
    with watched(monkeypatch, tmp_path) as node:
        assert node.observe(readings(held), 90).messages == ()
        (message,) = node.observe(readings(held), 20).messages
        assert (message.user, message.step, message.over) == ("alice", IdleStep.NOTIFY, False)
        assert message.text.startswith("GPU 0 of node-1 has been held by your container lab, and not used by it for")
        assert len(node.observe(readings(held), 500).messages) == 2, "and one reminder"
        working = readings(held, processes=[process(held)])
        assert [each.over for each in node.observe(working, 60).messages] == [True, True]
        assert node.reading().steps == {IdleStep.NOTIFY: 1, IdleStep.REMIND: 1, IdleStep.ACT: 0}
        assert node.types() == ["notified", "reminded"]


def test_a_restart_sends_nothing_twice_and_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held = managed("lab", "alice", "0")
    with watched(monkeypatch, tmp_path) as node:
        node.observe(readings(held), 150)
        node.restart()
        node.observe(Readings(), 10)
        node.observe(readings(), 10)
        assert node.observe(readings(held), 10).events == (), "Docker answers late"
        node.observe(readings(held), 60)
        assert node.types() == ["reminded"]
        node.restart()
        assert node.observe(readings(held), 900).events == ()
        assert [each.step for each in node.reading().messages] == [IdleStep.REMIND, IdleStep.NOTIFY]


def test_a_damaged_record_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held, file = managed("lab", "alice", "0"), tmp_path / "idle.json"
    for content in ("{", '{"messages": [[1]]}', "[]", json.dumps({"messages": [], "unsent": 5})):
        file.write_text(content)
        with watched(monkeypatch, tmp_path) as node:
            assert node.observe(readings(held), 110).recorded
        assert json.loads(file.read_text())["escalation"]
    assert len([record for record in caplog.records if "cannot be read" in record.message]) == 4
    assert file.stat().st_mode & 0o007 == 0, "it names users"


def test_a_record_that_cannot_be_written_is_visible(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "idle.json.new").mkdir()
    with watched(monkeypatch, tmp_path) as node:
        node.observe(readings(managed("lab", "alice", "0")), 110)
        until(lambda: not node.reading().recorded, "it is seen")
        assert node.types() == ["notified"], "the escalation goes on"


def test_labels_annotations_and_rules_leave_holders_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    base = managed("lab", "alice", "0")
    labelled = base._replace(labels={**base.labels, "gpucommons.idle": "No"})
    rules = {"services": IdleRuleSettings(user="svc-*", leave_alone=True), "all": IdleRuleSettings(user="*")}
    with watched(monkeypatch, tmp_path, idle_rules=rules) as node:
        node.observe(readings(labelled), 300)
        node.observe(readings(managed("daemon", "svc-web", "0")), 300)
        pod = Pod("uid-1", "train", "ml", "Running", annotations={"gpucommons.idle": "no"})
        devices = PodDevicesReading((given_to("train", DeviceId("x", gpu_uuid="GPU-0"), namespace="ml"),))
        node.observe(readings(pods=PodReading.of([pod]), pod_devices=devices), 300)
        assert node.types() == []
        plain = readings(pods=PodReading.of([pod._replace(annotations={})]), pod_devices=devices)
        # A runtime that is not read: the container's process names the pod.
        box, place = "c" * 64, PodPlace("uid-1", "train", "ml", "main")
        running = [process(sm=0, container_id=box, pod=place)]
        node.observe(readings(pods=PodReading.of([pod._replace(containers={box: "main"})]), processes=running), 300)
        assert node.types() == []
        node.observe(readings(pods=PodReading.of([pod]), pod_devices=devices), 300)
        (event,) = node.observe(plain, 10).events
        assert (event.type, event.user, node.reading().messages) == ("idle.notified", "", ()), "a pod has no user"


def test_a_workload_is_idle_if_all_its_gpus_are_and_a_users_programs_by_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    two, gpus = managed("two", "alice", "0", "1"), (gpu(0), gpu(1))
    with watched(monkeypatch, tmp_path) as node:
        node.observe(readings(two, gpus=gpus, processes=[process(two, gpu_index=1)]), 300)
        assert node.types() == []
        (message,) = node.observe(readings(two, gpus=gpus), 110).messages
        assert message.text.startswith("GPUs 0, 1 of node-1 have been held by your container two")
        every = docker("every", count=-1)
        newest = node.observe(readings(every, gpus=gpus, processes=[process(every, sm=0)]), 110).messages[0]
        assert newest.text.startswith("GPU 0 of node-1 has been held by your container every"), "it holds no other"
        programs = [process(gpu_index=0, pid=5), process(gpu_index=1, pid=6, sm=0)]
        newest = node.observe(readings(gpus=gpus, processes=programs), 110).messages[0]
        assert newest.text.startswith("GPU 1 of node-1 has been held by your")
        assert "pid 6" in newest.text


def test_the_action_comes_after_the_message_and_its_failure_is_an_event(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parking = replace(IDLE, act="park")
    sharing = SchedulerSettings(share_programs="all")
    given = readings(processes=[process(sm=0, pid=5)])
    with watched(monkeypatch, tmp_path, parking, scheduler=sharing) as node:
        node.observe(given, 290)
        assert node.parked == []
        node.observe(given, 600)
        assert node.parked == [frozenset({5})]
        assert node.types() == ["notified", "reminded", "acted"]
        node.observe(readings(processes=[process(pid=5)]), 60)
        node.problem = "it uses several GPUs"
        node.observe(given, 900)
        assert len(node.parked) == 2
        assert node.types()[3:] == ["notified", "reminded", "failed"]
        assert "it uses several GPUs" in node.reading().events[0].details["sentence"]


def test_only_leases_are_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    request = LeaseRequest(1000, "alice", 0.0, id="12", number=1, name="train.py")
    leased = readings()._replace(leases=LeasesReading(leases=(Lease(request, ("GPU-0",), 1.0, 1.7e9),)))
    with watched(monkeypatch, tmp_path, replace(IDLE, act="end_lease")) as node:
        node.observe(readings(managed("lab", "alice", "0")), 900)
        assert node.ended == []
        node.observe(leased, 110)
        assert "gpucommons cancel 12" in node.reading().messages[0].text
        node.observe(leased, 600)
        assert len(node.ended) == 1
        assert node.ended[0].startswith("12: ended: GPU 0 had not been used for 5 min")


WEBHOOK_ONLY: dict[str, Any] = {"scheduler": SchedulerSettings(share_programs="all")}


def test_no_action_while_no_channel_delivers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = readings(processes=[process(sm=0, pid=5)])
    with silent_server() as port:
        silent = WebhookSettings(url=f"http://127.0.0.1:{port}/")
        with watched(monkeypatch, tmp_path, replace(IDLE, act="park"), webhook=silent, **WEBHOOK_ONLY) as node:
            node.observe(given, 5000)
            assert node.parked == []
            assert node.types() == ["notified", "reminded"]


def test_letters_that_wait_are_sent_by_the_next_agent_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = readings(managed("lab", "alice", "0"))
    with hook() as (made, url):
        made.statuses = [503]
        with watched(monkeypatch, tmp_path, webhook=WebhookSettings(url=url)) as node:
            node.observe(given, 110)
            until(lambda: made.requests == 1, "the first try")
            until(lambda: node.reading().channels[0].failing_since_wall_s, "it failed")
            node.restart()
            until(lambda: made.texts, "the next agent delivers it")
            node.observe(given, 10)
            node.restart()
            node.observe(given, 10)
        assert len(made.texts) == 1


def test_the_digest_is_sent_once_a_week(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with hook() as (made, url), watched(monkeypatch, tmp_path, webhook=WebhookSettings(url=url)) as node:
        node.observe(readings(), 60)
        for week in (1, 2):
            node.now_s += 7 * 86_400
            node.observe(readings(), 120)
            until(lambda week=week: len(made.texts) >= week, "the digest")  # type: ignore[misc]
            node.restart()
            node.observe(readings(), 120)
    assert len(made.texts) == 2, "none for the week of the first start, and none twice"
    assert made.texts[0].startswith("GPUs of node-1 from ")
    assert "No GPU was lost." in made.texts[0]


def test_a_simulation_sends_nothing_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    settings = replace(Settings(), webhook=WebhookSettings(url="http://127.0.0.1:9/"))
    watch = IdleWatch(settings, "lab", "node-1")
    asyncio.run(watch.start())
    try:
        (source,) = watch.sources()
        reading = source.read()
        assert isinstance(reading, IdleReading)
        assert reading.channels == ()
    finally:
        asyncio.run(watch.stop())


MAIL = MailSettings(server="127.0.0.1:25", sender="gpus@example.org")


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"idle": replace(IDLE, act="park")}, "idle.act = park needs scheduler.share_programs"),
        (
            {"idle": replace(IDLE, act="end_lease"), "leases": LeasesSettings(enabled="false")},
            "idle.act = end_lease needs leases",
        ),
        ({"mail": MailSettings(admin="a@example.org")}, "mail.admin needs mail.server"),
        ({"idle_rules": {"a": IdleRuleSettings(email="a@example.org")}}, "idle_rules.a.email needs mail.server"),
        ({"mail": replace(MAIL, sender="")}, "mail.server needs mail.sender"),
        ({"mail": replace(MAIL, user="gpus")}, "needs mail.password_file"),
        (
            {"mail": replace(MAIL, server="mail.example.org:25", tls="none", user="gpus", password_file="/x")},
            "mail.user needs mail.tls",
        ),
        ({"webhook": WebhookSettings("http://a/", "/x")}, "exclude each other"),
    ],
)
def test_settings_that_contradict_each_other(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        IdleWatch(replace(Settings(), **sections), None, "node-1")
