"""The summary of a job, in the format that Princeton's jobstats reads, and as text."""

import base64
import gzip
import json
from typing import Any

import pytest

from gpucommons.cli.job_view import node_lines
from gpucommons.faces.fleet.job_comments import admin_comment, system_comment
from gpucommons.faces.fleet.jobs import job_nodes, job_queries, node_hints
from gpucommons.faces.fleet.queries import Sample
from gpucommons.model.fleet import JobRun
from gpucommons.slurm.jobs import keeps_case, parse_run

_GIB = 1 << 30


def answers() -> dict[str, list[Sample]]:
    """Two nodes with a GPU each: the first has a name in Slurm, the second has no cgroup that counts."""
    first, second = {"instance": "10.0.0.1:9460", "node": "gpu1"}, {"instance": "gpu2:9460"}

    def on_gpus(of_first: float, of_second: float) -> list[Sample]:
        return [Sample({**first, "slot": "0"}, of_first), Sample({**second, "slot": "1"}, of_second)]

    return {
        "gpu_utilization": on_gpus(0.5, 0.7),
        "gpu_used_memory": on_gpus(20.0 * _GIB, 60.0 * _GIB),
        "gpu_total_memory": on_gpus(80.0 * _GIB, 80.0 * _GIB),
        "cpus": [Sample(first, 8.0)],
        "total_time": [Sample(first, 400.0)],
        "used_memory": [Sample(first, 6.0 * _GIB)],
        "total_memory": [Sample(first, 16.0 * _GIB)],
        "run_time": [Sample(first, 100.0), Sample(second, None)],
    }


def decoded(comment: str) -> Any:
    """As jobstats does."""
    assert comment.startswith("JS1:")
    assert len(comment) > 10
    return json.loads(gzip.decompress(base64.b64decode(comment[4:])))


def test_jobstats_reads_the_comment() -> None:
    found = decoded(admin_comment(job_nodes(answers()), JobRun(100, 2)))
    assert found == {
        "nodes": {
            "gpu1": {
                "cpus": 8,
                "used_memory": 6 * _GIB,
                "total_memory": 16 * _GIB,
                "total_time": 400.0,
                "gpu_utilization": {"0": 50.0},
                "gpu_used_memory": {"0": 20 * _GIB},
                "gpu_total_memory": {"0": 80 * _GIB},
            },
            "gpu2": {
                "gpu_utilization": {"1": 70.0},
                "gpu_used_memory": {"1": 60 * _GIB},
                "gpu_total_memory": {"1": 80 * _GIB},
            },
        },
        "total_time": 100,
        "gpus": 2,
    }


def test_a_short_job_and_one_without_data_are_marked() -> None:
    assert admin_comment({}, JobRun(5, 1)) == "JS1:Short"
    assert admin_comment({}, JobRun(500, 1)) == "JS1:None"


def test_the_text_fits_into_a_column() -> None:
    text = system_comment(job_nodes(answers()), JobRun(100, 2))
    assert text == "gpucommons: 2 nodes, GPU 60%, GPU memory 50%, CPU 50%, memory 38%"
    assert "no data" in system_comment({}, JobRun(5, 1))


def test_the_lines_of_the_report() -> None:
    assert node_lines(job_nodes(answers())) == [
        "gpu1: 8 CPUs, 0.11 h of CPU time (50%), at most 6.0 of 16.0 GiB of host memory (38%)",
        "  GPU 0: SM 50%, memory at most 20.0 of 80.0 GiB (25%)",
        "gpu2: its CPU time and host memory are not known",
        "  GPU 1: SM 70%, memory at most 60.0 of 80.0 GiB (75%)",
    ]


def test_what_is_not_known_has_no_percentage() -> None:
    unlimited = {**answers(), "total_memory": [], "run_time": []}
    assert node_lines(job_nodes(unlimited))[0] == "gpu1: 8 CPUs, 0.11 h of CPU time, at most 6.0 GiB of host memory"


def test_the_hints_are_for_the_gpus_of_all_nodes() -> None:
    """Each node by itself has used all or none of its GPUs."""
    first, second = {"node": "gpu1", "slot": "0"}, {"node": "gpu2", "slot": "0"}
    run = [Sample({"node": "gpu1"}, 600.0), Sample({"node": "gpu2"}, 600.0)]

    def hints(of_first: float, of_second: float | None) -> tuple[str, ...]:
        busy = [Sample(first, of_first), Sample(second, of_second)]
        memory = [Sample(first, 1.0), Sample(second, 1.0)]
        return node_hints(job_nodes({"gpu_utilization": busy, "gpu_used_memory": memory, "run_time": run}))

    assert hints(0.5, 0.0) == ("asked 2 GPUs, used 1: ask for fewer, or let the program use all of them",)
    assert hints(0.0, 0.0) == ("2 GPUs were held and never used: does the program find CUDA?",)
    assert hints(0.5, 0.5) == ()
    assert hints(0.0, None) == (), "of one GPU it is not known"


def test_what_slurm_says_of_the_run() -> None:
    text = "JobId=3 JobState=COMPLETING RunTime=1-02:03:04 TRES=cpu=4,gres/gpu=3,gres/gpu:h200=3 NodeList=gpu1"
    assert parse_run(text) == JobRun(93784, 3)
    assert parse_run("JobId=3 RunTime=00:00:02 JOB_GRES=gpu:h200:2   Nodes=vm") == JobRun(2, 2)
    assert parse_run("nothing") == JobRun(0, None)


def test_only_the_id_of_a_job_becomes_part_of_a_query() -> None:
    assert 'gpucommons_job_cpus{job_id="12",cluster="a"}[30d]' in job_queries("12", 'cluster="a"')["cpus"]
    with pytest.raises(ValueError, match="not the id of a Slurm job"):
        job_queries('1"} or up{a="')


@pytest.mark.parametrize(
    ("version", "keeps"),
    [
        ("slurm-wlm 22.05.8", False),
        ("slurm 23.02.0", True),
        ("slurm 25.11.1-rc1", True),
        ("slurm 21.08", False),
        ("", True),
    ],
)
def test_which_slurm_writes_a_comment_as_it_is(version: str, keeps: bool) -> None:
    assert keeps_case(f"{version}\n") == keeps
