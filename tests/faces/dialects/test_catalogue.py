"""Every metric has a legal name with the prefix of its dialect and one sentence of help; no family is unlisted."""

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
    "vgpu": ("pod_gpu_", "pod_total_", "exposer_"),
    "nodeexporter": ("node_",),
    "nvidiasmi": ("nvidia_smi_",),
}
every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: str(dialect.name))


@every_dialect
def test_names_and_labels_are_legal(dialect: Dialect) -> None:
    for metric in dialect.catalogue:
        assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", metric.name)
        assert metric.name.startswith(PREFIXES[dialect.name])
        assert len(set(metric.labels)) == len(metric.labels), metric.name
        assert metric.optional <= set(metric.labels), metric.name
        assert bool(metric.buckets) == (metric.type is MetricType.HISTOGRAM), metric.name


# Words that open a clause or a value instead of a noun phrase.
NOT_NOUNS = {"The", "A", "An", "What", "How", "Who", "Which", "Whether", "Of", "From", "Its", "If", "One", "Is", "Has"}


@every_dialect
def test_help_is_one_sentence_that_starts_with_a_noun(dialect: Dialect) -> None:
    for metric in dialect.catalogue:
        first = metric.help.split()[0].rstrip(",:;")
        assert ". " not in metric.help, f"{metric.name}: more than one sentence"
        assert metric.help.endswith("."), f"{metric.name}: not a sentence"
        assert first[0].isupper(), f"{metric.name}: starts with {first!r}"
        assert first not in NOT_NOUNS, f"{metric.name}: starts with {first!r}"
        assert len(metric.help.split()) > 1, f"{metric.name}: says too little"


def test_no_name_belongs_to_two_families() -> None:
    names = [metric.name for dialect in DIALECTS for metric in dialect.catalogue]
    assert len(set(names)) == len(names)


@every_dialect
def test_an_empty_snapshot_yields_only_listed_families(dialect: Dialect) -> None:
    families = list(dialect.collect(Snapshot(0, 0.0, 0.0, "host")))
    assert {family.metric for family in families} <= set(dialect.catalogue)
