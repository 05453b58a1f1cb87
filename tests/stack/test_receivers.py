"""`check-config --send-test` tries the receivers of alerts: with a real Alertmanager, webhook and mail server."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpucommons.stack.local import LocalEngine
from gpucommons.stack.receivers import Tries, integrations, reason_in, requests_in, verdicts
from needs import needs_program
from prometheus_server import free_port
from receivers import hook, mailbox
from running import command
from stack.stacks import settings_on_free_ports, stack_in
from waiting import until

METRICS = """\
# TYPE alertmanager_notification_requests_total counter
alertmanager_notification_requests_total{integration="slack"} 3
alertmanager_notification_requests_total{integration="slack",receiver_name="critical"} 1
alertmanager_notification_requests_failed_total{integration="slack"} 2
alertmanager_notification_requests_total{integration="msteamsv2"} 1e+00
alertmanager_notifications_total{integration="email"} 9
"""


def tries(**counted: tuple[int, int]) -> Tries:
    return Tries(
        Counter({name: total for name, (total, _) in counted.items()}),
        Counter({name: failed for name, (_, failed) in counted.items()}),
    )


def test_the_tries_are_read_from_the_metrics_of_alertmanager() -> None:
    assert requests_in(METRICS) == Tries(Counter(slack=4, msteamsv2=1), Counter(slack=2))


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (tries(), tries(), {}),
        (tries(email=(5, 2)), tries(email=(6, 2)), {}),
        (tries(email=(5, 2)), tries(email=(7, 2)), {"email": True}),
        (tries(email=(5, 2)), tries(email=(6, 3)), {"email": False}),
        (tries(slack=(1, 1)), tries(slack=(2, 1), email=(1, 1)), {"slack": True, "email": False}),
    ],
)
def test_a_receiver_is_judged_by_its_own_tries(before: Tries, now: Tries, expected: Mapping[str, bool]) -> None:
    assert verdicts({"email": 2, "slack": 1}, before, now) == expected


def test_every_receiver_that_is_set_is_tried() -> None:
    files = {f"{name}_webhook_url_file": "/file" for name in ("slack", "teams")}
    every = settings_on_free_ports(
        smtp_smarthost="localhost:25", email_to="a@example.org, b@example.org,", webhook_url_file="/file", **files
    )
    assert integrations(every) == {"email": 2, "webhook": 1, "slack": 1, "msteamsv2": 1}
    assert integrations(settings_on_free_ports(email_to="a@example.org")) == {}


def test_the_reason_is_the_last_error_of_the_receiver() -> None:
    log = (
        'level=warn receiver=critical integration=slack[0] msg="will retry" err="Post \\"<redacted>\\": refused"\n'
        'level=error msg="failed" err="critical/webhook[0]: notify retry canceled due to unrecoverable error after 1 '
        'attempts: unexpected status code 404: https://hooks.example.org/T0/B0/secret: no_team"\n'
    )
    assert reason_in(log, "slack") == 'Post "<redacted>": refused'
    assert reason_in(log, "webhook") == "unexpected status code 404: <URL> no_team"
    assert reason_in(log, "email") is None


@pytest.mark.long
def test_the_receivers_of_a_running_stack_are_tried(tmp_path: Path) -> None:
    needs_program("prometheus", "promtool", "prometheus-alertmanager", "amtool")
    config, root = tmp_path / "config.toml", tmp_path / "stack"
    with hook() as (slack, slack_url), hook() as (plain, plain_url), mailbox() as (box, server):
        for name, url in (("slack", slack_url), ("plain", plain_url)):
            (tmp_path / name).write_text(url)
        settings = settings_on_free_ports(
            data_dir=str(root),
            smtp_smarthost=server,
            smtp_from="gpus@example.org",
            smtp_require_tls=False,
            email_to="admins@example.org, oncall@example.org",
            webhook_url_file=str(tmp_path / "plain"),
            slack_webhook_url_file=str(tmp_path / "slack"),
        )
        lines = [
            f"{name} = {json.dumps(getattr(settings, name))}"
            for name in (
                *("engine", "data_dir", "node", "alertmanager_listen", "smtp_smarthost", "smtp_from", "email_to"),
                *("smtp_require_tls", "webhook_url_file", "slack_webhook_url_file"),
            )
        ]
        config.write_text("\n".join(("[stack]", *lines)))
        done = command("check-config", str(config), "--send-test")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"stack: failed: Alertmanager does not answer on {settings.alertmanager_listen}: " in done.stderr
        assert "gpucommons stack start" in done.stderr

        engine = LocalEngine(stack_in(root, settings))
        engine.start()
        try:
            until(lambda: any(each.service == "alertmanager" and each.ok for each in engine.status()), "it is ready")
            done = command("check-config", str(config), "--send-test")
            assert (done.returncode, done.stderr) == (0, "")
            assert sorted(done.stdout.splitlines()) == [
                "stack email: delivered to admins@example.org, oncall@example.org",
                "stack slack: delivered",
                "stack webhook: delivered",
            ]
            assert sorted(box.recipients) == ["admins@example.org", "oncall@example.org"]
            assert plain.bodies[0]["alerts"][0]["labels"]["alertname"] == "GPUCommonsTest"
            (message,) = slack.bodies
            assert "Test message of gpucommons on here" in json.dumps(message)

            for failing, receiver, status in ((slack, "stack slack", 404), (plain, "stack webhook", 503)):
                failing.statuses = [status]
                done = command("check-config", str(config), "--send-test", "--json")
                channels = json.loads(done.stdout)["channels"]
                assert [name for name, row in channels.items() if not row["delivered"]] == [receiver]
                assert str(status) in channels[receiver]["error"], channels
                assert done.returncode == 1
                assert "secret" not in done.stdout + done.stderr, "the URLs are secrets"
        finally:
            engine.stop()


def test_without_any_channel_the_settings_are_named(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[stack]\nalertmanager_listen = "127.0.0.1:{free_port()}"\n')
    done = command("check-config", str(config), "--send-test")
    assert done.returncode == 2
    assert "no channel is configured: set mail.server, webhook.url or webhook.url_file, or a receiver of [stack]" in (
        done.stderr
    )
