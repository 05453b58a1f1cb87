"""What is wrong on the node, gravest first, and the node's state in one sentence. Pure."""

from gpucommons.faces.documents.schema import (
    INTEGER,
    INTEGER_OR_NULL,
    NUMBER_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    Record,
    by_key,
    described,
    listed,
    one_of,
)
from gpucommons.faces.documents.values import Json, rounded
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.health import HealthLevel
from gpucommons.rules.problems import Problem, ProblemKind, problems_of
from gpucommons.rules.summary import StateSummary, SummaryPart, Tone, summary_of

_PROBLEM = Record[tuple[int, Problem]](
    rank=(described(INTEGER, "1 is the gravest"), lambda at: at[0]),
    kind=(one_of(*ProblemKind), lambda at: at[1].kind.value),
    level=(one_of(*(level.name.lower() for level in HealthLevel)), lambda at: at[1].level.name.lower()),
    sentence=(described(TEXT, "what is wrong"), lambda at: at[1].sentence),
    remedy=(described(TEXT, "what to do"), lambda at: at[1].remedy),
    gpu_uuid=(TEXT_OR_NULL, lambda at: at[1].gpu_uuid),
    gpu_index=(INTEGER_OR_NULL, lambda at: at[1].gpu_index),
    since_unix_s=(
        described(NUMBER_OR_NULL, "when it began; null if that is not known"),
        lambda at: rounded(at[1].since_wall_s, 0),
    ),
)
_PART = Record[SummaryPart](
    name=(described(TEXT, "lost, overheating, problems, free, held_idle, waiting and so on"), lambda part: part.name),
    count=(INTEGER, lambda part: part.count),
    text=(TEXT, lambda part: part.text),
    detail=(described(TEXT, "which GPUs, or the longest holder; may be empty"), lambda part: part.detail),
    tone=(one_of(*Tone), lambda part: part.tone.value),
    slots=(described(listed(TEXT), "names of the slots that it counts"), lambda part: list(part.slots)),
)
SUMMARY_RECORD = Record[StateSummary](
    sentence=(described(TEXT, "the parts in one line"), lambda summary: summary.sentence),
    tone=(one_of(*Tone), lambda summary: summary.tone.value),
    parts=(listed(_PART.schema), lambda summary: [_PART.build(part) for part in summary.parts]),
)
SCHEMA = by_key(_PROBLEM.schema, "key of the problem")
SUMMARY = SUMMARY_RECORD.schema


def problems(snapshot: Snapshot) -> Json:
    return {problem.key: _PROBLEM.build((rank, problem)) for rank, problem in enumerate(problems_of(snapshot), 1)}


def summary(snapshot: Snapshot) -> Json:
    return SUMMARY_RECORD.build(summary_of(snapshot, problems_of(snapshot)))
