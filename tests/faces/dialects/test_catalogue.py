"""What every dialect promises: named, explained, of one prefix family, and nothing beside its catalogue."""

import re

import pytest

from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.exposition.families import MetricType
from gpucommons.model.snapshot import Snapshot

PREFIXES = {
    "gpucommons": ("gpucommons_",),
    "nvshare": ("nvshare_",),
    "xpushare": ("xpushare_",),
    "node": ("cpu_", "node_", "gpu_"),
    "dcgm": ("DCGM_FI_", "DCGM_EXP_"),
    "ds01": ("ds01_",),
    "vgpu": ("pod_gpu_", "pod_total_"),
    "nodeexporter": ("node_",),
}
every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: str(dialect.name))


@every_dialect
def test_names_are_legal_prefixed_and_explained(dialect: Dialect) -> None:
    for metric in dialect.catalogue:
        assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", metric.name)
        assert metric.name.startswith(PREFIXES[dialect.name])
        assert len(metric.help) > 8, metric.name
        assert len(set(metric.labels)) == len(metric.labels), metric.name
        assert metric.optional <= set(metric.labels), metric.name
        assert bool(metric.buckets) == (metric.type is MetricType.HISTOGRAM), metric.name


def test_no_name_belongs_to_two_families() -> None:
    names = [metric.name for dialect in DIALECTS for metric in dialect.catalogue]
    assert len(set(names)) == len(names)


@every_dialect
def test_nothing_beside_the_catalogue_comes_of_an_empty_snapshot(dialect: Dialect) -> None:
    families = list(dialect.collect(Snapshot(0, 0.0, 0.0, "host")))
    assert {family.metric for family in families} <= set(dialect.catalogue)
