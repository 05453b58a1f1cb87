"""Quotas: what their texts mean, and which source wins."""

import pytest

from gpucommons.base.text import parse_core, parse_memory
from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.model.words import SharingClass
from gpucommons.scheduler.policy.policy import Policy
from gpucommons.scheduler.policy.quotas import (
    ClientLimits,
    LimitLookup,
    PodName,
    QuotaRule,
    QuotaValues,
    decide,
    from_annotations,
    from_client,
    from_rules,
)
from gpucommons.scheduler.policy.state import GIB, Client


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("8Gi", 8 << 30),
        ("512Mi", 512 << 20),
        ("3Ki", 3 << 10),
        ("2G", 2 * 10**9),
        ("5M", 5 * 10**6),
        ("7K", 7000),
        ("1073741824", 1 << 30),
        ("1.5Gi", 3 << 29),
        (" 8Gi ", 8 << 30),
    ],
)
def test_amounts_of_memory(text: str, amount: int) -> None:
    assert parse_memory(text) == amount


@pytest.mark.parametrize("text", ["", "Gi", "-1Gi", "8 Gi b", "8gi", "0", "0.0000001K", "1e9", "٣Gi", "9" * 40 + "Gi"])
def test_invalid_amounts_of_memory(text: str) -> None:
    with pytest.raises(ValueError, match="invalid amount of memory"):
        parse_memory(text)


def test_shares() -> None:
    assert [parse_core(text) for text in ("1", "25", "100", "50%")] == [1, 25, 100, 50]
    for text in ("0", "101", "", "-5", "2.5", "1000", "٣"):
        with pytest.raises(ValueError, match="invalid share of a GPU"):
            parse_core(text)


def test_annotations() -> None:
    assert from_annotations({}) == QuotaValues()
    for domain in ("nvshare.com", "xpushare.com"):
        memory, core = f"{domain}/gpu-memory-limit", f"{domain}/gpu-core-limit"
        assert from_annotations({memory: "4Gi", core: "30", "other": "x"}) == QuotaValues(4 * GIB, 30)
        with pytest.raises(ValueError, match=core):
            from_annotations({core: "lots"})


def test_our_annotation_takes_precedence_over_those_of_nvshare() -> None:
    given = {"gpucommons.io/memory": "1Gi", "xpushare.com/gpu-memory-limit": "2Gi", "gpucommons.io/core": "40%"}
    assert from_annotations(given) == QuotaValues(GIB, 40)
    with pytest.raises(ValueError, match=r"gpucommons\.io/core: invalid share"):
        from_annotations({"gpucommons.io/core": "200"})


def test_a_pod_lowers_the_limits_of_its_namespace_and_does_not_raise_them() -> None:
    namespace = QuotaValues(8 * GIB, 50)
    assert decide(annotation=QuotaValues(9 * GIB, 51), config=namespace) == ClientLimits(
        8 * GIB, "config", 50, "config"
    )
    lower = decide(annotation=QuotaValues(GIB, 50), config=namespace)
    assert lower == ClientLimits(GIB, "annotation", 50, "annotation")
    assert decide(annotation=QuotaValues(9 * GIB, 51)) == ClientLimits(9 * GIB, "annotation", 51, "annotation")
    operator = decide(set_limit=QuotaValues(9 * GIB), annotation=QuotaValues(GIB), config=namespace)
    assert (operator.memory_bytes, operator.memory_source) == (9 * GIB, "set-limit")


def test_the_class_of_a_pod_is_within_that_of_its_namespace() -> None:
    assert from_annotations({"gpucommons.io/class": "Background"}) == QuotaValues(sharing_class=SharingClass.BACKGROUND)
    with pytest.raises(ValueError, match=r"gpucommons\.io/class: unknown class 'best': use batch, latency, background"):
        from_annotations({"gpucommons.io/class": "best"})
    for of_pod, of_namespace, in_force in (
        ("latency", "batch", ("batch", "config")),
        ("background", "batch", ("background", "annotation")),
        ("batch", "latency", ("batch", "annotation")),
        ("latency", None, ("latency", "annotation")),
    ):
        given = QuotaValues(sharing_class=None if of_namespace is None else SharingClass(of_namespace))
        limits = decide(annotation=QuotaValues(sharing_class=SharingClass(of_pod)), config=given)
        assert (limits.sharing_class, limits.class_source) == in_force


def test_xpushares_annotation_wins_over_nvshares_of_the_same_limit() -> None:
    both = {"nvshare.com/gpu-memory-limit": "4Gi", "xpushare.com/gpu-memory-limit": "2Gi"}
    for annotations in (both, dict(reversed(both.items()))):
        assert from_annotations({**annotations, "nvshare.com/gpu-core-limit": "30"}) == QuotaValues(2 * GIB, 30)
    with pytest.raises(ValueError, match=r"xpushare.com/gpu-memory-limit: invalid amount of memory 'much'"):
        from_annotations({**both, "xpushare.com/gpu-memory-limit": "much"})


def test_what_a_client_asks_for_itself() -> None:
    assert from_client(GIB, 30) == QuotaValues(GIB, 30)
    assert from_client(0, 0) == from_client(0, 100) == from_client(1 << 63, -7) == QuotaValues()


def test_rules_match_by_pattern_and_the_first_that_says_something_wins() -> None:
    rules = (
        QuotaRule(pod="train-*", quota=QuotaValues(core_percent=50)),
        QuotaRule(namespace="students", quota=QuotaValues(8 * GIB, 25)),
        QuotaRule(uid="100?", quota=QuotaValues(GIB, 10)),
    )
    assert from_rules(rules, "train-1", "students", 5) == QuotaValues(8 * GIB, 50)
    assert from_rules(rules, "x", "y", 1003) == QuotaValues(GIB, 10)
    assert from_rules(rules, "x", "y", 5) == QuotaValues()


def test_the_rule_of_a_namespace_limits_the_class_of_nvshares_clients_there() -> None:
    policy = Policy(SchedulerSettings())
    gpu = policy.add_gpu("g", 0, 0.0)
    lookup = LimitLookup([QuotaRule(namespace="students", quota=QuotaValues(sharing_class=SharingClass.BATCH))])
    lookup.annotations = dict.fromkeys(
        (("students", "pod"), ("staff", "pod")), QuotaValues(sharing_class=SharingClass.LATENCY)
    )
    student, member = (Client(id, gpu, pod="pod", namespace=name) for id, name in ((1, "students"), (2, "staff")))
    assert lookup.enter(student, 0, 0).sharing_class is SharingClass.BATCH
    assert lookup.enter(member, 0, 0).sharing_class is SharingClass.LATENCY


def test_the_order_of_the_sources() -> None:
    sources = {
        "set_limit": QuotaValues(1, 11),
        "annotation": QuotaValues(2, 12),
        "config": QuotaValues(3, 13),
        "env": QuotaValues(4, 14),
    }
    shown = {"set_limit": "set-limit"}
    while sources:
        name, quota = next(iter(sources.items()))
        limits = decide(**sources)
        assert (limits.memory_bytes, limits.core_percent) == (quota.memory_bytes, quota.core_percent)
        assert limits.memory_source == limits.core_source == shown.get(name, name)
        del sources[name]
    assert decide() == ClientLimits(0, "none", 100, "none")
    mixed = decide(annotation=QuotaValues(core_percent=20), config=QuotaValues(5, 60))
    assert mixed == ClientLimits(5, "config", 20, "annotation")


def test_a_limit_set_for_a_pod_holds_for_its_later_clients_and_one_for_a_client_goes_with_it() -> None:
    policy = Policy(SchedulerSettings())
    gpu = policy.add_gpu("g", 0, 0.0)
    first, second = (Client(id, gpu, pod="pod", namespace="ns") for id in (1, 2))
    lookup = LimitLookup()
    lookup.enter(first, 0, 0)
    lookup.set_limit("ns/pod", QuotaValues(core_percent=40))
    lookup.set_limit("0000000000000001", QuotaValues(memory_bytes=7))
    lookup.set_limit("0000000000000001", QuotaValues(core_percent=20))
    assert lookup.decide(first) == ClientLimits(7, "set-limit", 20, "set-limit")
    lookup.set_limit("ns/later", QuotaValues(sharing_class=SharingClass.BATCH))
    lookup.set_limit("ns/later", QuotaValues(core_percent=20))
    assert lookup.set_for(["ns/later"]) == QuotaValues(core_percent=20, sharing_class=SharingClass.BATCH)
    assert lookup.enter(second, 0, 0) == ClientLimits(0, "none", 40, "set-limit")
    lookup.leave(first)
    assert lookup.enter(first, 0, 0) == ClientLimits(0, "none", 40, "set-limit")


def test_a_client_outside_of_pods_gets_nothing_by_the_name_of_a_pod_where_pods_are_known() -> None:
    """The name is only a claim. Where the kernel knows the pod of a client, that one counts."""
    gpu = Policy(SchedulerSettings()).add_gpu("g", 0, 0.0)
    inside, outside = (Client(id, gpu, pod="pod", namespace="ns") for id in (1, 2))
    lookup = LimitLookup()
    lookup.set_limit("ns/pod", QuotaValues(core_percent=40))
    lookup.set_limit("ns/other", QuotaValues(core_percent=30))
    limited, free = ClientLimits(0, "none", 40, "set-limit"), ClientLimits(0, "none", 100, "none")
    assert lookup.enter(inside, 0, 0) == limited
    assert lookup.enter(outside, 0, 0, in_pod=False) == limited, "no pods are known: it is a name as any"
    lookup.knows_pods = True
    assert [lookup.decide(client) for client in (inside, outside)] == [limited, free]
    assert lookup.identify(outside, PodName("ns", "other")), "its limits change"
    assert lookup.decide(outside).core_percent == 30
    assert not lookup.identify(outside, PodName("ns", "other"))
    assert lookup.clear_limit("ns/other")
    assert not lookup.clear_limit("ns/other")
    assert lookup.decide(outside) == free


@pytest.mark.parametrize(("memory", "core"), [(0, 0), (5 * GIB, 0), (0, 30), (5 * GIB, 30)])
def test_a_client_has_the_limits_that_it_requested_until_it_leaves(memory: int, core: int) -> None:
    gpu = Policy(SchedulerSettings()).add_gpu("g", 0, 0.0)
    client, lookup = Client(1, gpu), LimitLookup()
    limits = lookup.enter(client, memory, core)
    assert (limits.memory_bytes, limits.core_percent) == (memory, core or 100)
    lookup.leave(client)
    assert lookup.enter(client, 0, 0) == ClientLimits(0, "none", 100, "none")


def test_the_first_source_that_gives_a_class_decides() -> None:
    latency, background = (QuotaValues(sharing_class=one) for one in (SharingClass.LATENCY, SharingClass.BACKGROUND))
    limited = QuotaValues(core_percent=25)
    found = decide(set_limit=limited, config=background, label=latency, lease=latency)
    assert (found.core_percent, found.core_source) == (25, "set-limit")
    assert (found.sharing_class, found.class_source) == (SharingClass.BACKGROUND, "config")
    assert decide(set_limit=latency, config=background).class_source == "set-class"
    assert decide(label=latency, lease=background).sharing_class is SharingClass.LATENCY
    assert decide(lease=background).class_source == "lease"
    assert decide().sharing_class is SharingClass.BATCH
