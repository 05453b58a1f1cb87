"""What scontrol prints, as Slurm 22.05 and later do, and the jobs of a node from the prolog's files."""

from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.model.workloads import MappedJob
from gpucommons.slurm.jobs import (
    JobDetails,
    SlurmError,
    SlurmJobsReader,
    UnknownJob,
    is_suspended,
    parse_job,
    shards_per_gpu,
)
from gpucommons.sources.source import SourceAbsent

# As Slurm 22.05.8 prints it, with another name of the job.
_TEXT = (
    "JobId=3 JobName=a b=c UserId=alice(1000) GroupId=alice(1000) Priority=1 JobState={state} Reason=None "
    "RunTime=00:00:02 NodeList=gpu[1-2] BatchHost=gpu1 NumNodes=2 NumCPUs=6 TRES=cpu=6,node=2,billing=6 "
    "JOB_GRES=gpu:h200:2   Nodes=gpu1 CPU_IDs=0-1,8-9 Mem=8000 GRES={gres}    "
    "Nodes=gpu2 CPU_IDs=0-1 Mem=2G GRES=gpu:h200:1(IDX:3) MinCPUsNode=1 Command=/home/alice/Nodes=x WorkDir=/tmp"
)


def job_text(gres: str = "gpu:h200:2(IDX:0-1)", state: str = "RUNNING") -> str:
    return _TEXT.format(gres=gres, state=state)


def test_a_job_has_the_cpus_and_memory_of_this_node() -> None:
    assert parse_job(job_text(), "gpu1", range(8)) == JobDetails(False, 4, 8000 << 20)
    assert parse_job(job_text(), "gpu2", range(8)) == JobDetails(False, 2, 2 << 30)


@pytest.mark.parametrize(
    ("gres", "shards"),
    [
        ("shard:2(IDX:0)", {0: 2}),
        ("shard:h200:2(IDX:3)", {3: 2}),
        ("shard:4(IDX:1-2)", {1: 2, 2: 2}),
        ("shard:h200:3(0/4,3/4)", {1: 3}),
        ("gpu:h200:2(IDX:0-1)", {}),
        ("", {}),
    ],
)
def test_shards_are_those_on_each_gpu(gres: str, shards: dict[int, int]) -> None:
    assert parse_job(job_text(gres), "gpu1", range(8)).shards == shards


def test_a_node_divides_its_gpus_into_shards() -> None:
    assert shards_per_gpu("NodeName=vm Arch=x Gres=gpu:h200:4(S:0-1),shard:h200:16(S:0-1) NodeAddr=vm") == 4
    assert shards_per_gpu("NodeName=vm Gres=gpu:h200:4 NodeAddr=vm") == 0
    assert shards_per_gpu("NodeName=vm Gres=(null)") == 0


@pytest.mark.parametrize(
    ("nodes", "included"),
    [
        ("c1", {"c1"}),
        ("gpu[01-03,7],login", {"gpu01", "gpu02", "gpu03", "gpu7", "login"}),
        ("a[1-2]-ib,gpu", {"a1-ib", "a2-ib", "gpu"}),
        ("gpu[0-\u00b2]", set()),
        ("", set()),
    ],
)
def test_a_group_of_nodes_has_the_same_details(nodes: str, included: set[str]) -> None:
    text = f"JobId=3 JobState=RUNNING   Nodes={nodes} CPU_IDs=0-2 Mem=1 GRES= "
    names = {"c1", "gpu01", "gpu02", "gpu03", "gpu7", "gpu8", "gpu71", "gpu", "login", "a1-ib", "a2-ib", "a3-ib", "a1"}
    assert {name for name in names if parse_job(text, name, ()).cpus == 3} == included


@pytest.mark.parametrize("fake", ["Nodes=gpu1 CPU_IDs=0-63 Mem=1 GRES=gpu:1(IDX:0)", "Nodes=gpu1 GRES=shard:4(IDX:0)"])
def test_the_name_and_command_of_a_job_give_it_no_larger_share(fake: str) -> None:
    text = job_text("shard:1(IDX:0)").replace("b=c", fake).replace("Nodes=x", f"x {fake}")
    assert parse_job(text, "gpu1", range(8)).shards == {0: 1}


def test_a_task_of_an_array_has_the_shards_of_its_own_gpus() -> None:
    """The last task has the id of the array, for which scontrol prints all tasks."""
    text = f"{job_text('shard:2(IDX:0)', 'COMPLETED')}\n{job_text('shard:2(IDX:1)')}"
    assert parse_job(text, "gpu1", {0}).shards == {0: 2}
    assert parse_job(text, "gpu1", {1}).shards == {1: 2}
    assert not parse_job(text, "gpu1", {0}).has_ended


@pytest.mark.parametrize(
    ("answer", "suspended"),
    [
        ("41 SUSPENDED\n", True),
        ("41 RUNNING\n", False),
        ("40 RUNNING\n41 SUSPENDED\n", True),
        ("40 SUSPENDED\n41 RUNNING\n", False),
        ("", False),
    ],
)
def test_a_job_is_suspended_whatever_other_tasks_of_its_array_are(answer: str, suspended: bool) -> None:
    assert is_suspended("41", lambda command: answer) is suspended


def test_the_name_of_a_job_does_not_end_it() -> None:
    assert not parse_job(job_text().replace("b=c", "JobState=COMPLETED"), "gpu1", range(8)).has_ended
    assert parse_job(job_text(state="TIMEOUT"), "gpu1", range(8)).has_ended


@given(st.text(max_size=200))
def test_any_answer_is_a_job_or_an_error(text: str) -> None:
    shards_per_gpu(text)
    with suppress(SlurmError):
        assert parse_job(text, "gpu1", range(8))


class Scontrol:
    """Answers by what is asked about, and remembers the questions."""

    def __init__(self, **jobs: str | SlurmError) -> None:
        self.jobs = jobs
        self.asked: list[str] = []

    def __call__(self, command: Sequence[str]) -> str:
        what = "_".join((command[2], command[-1]))
        self.asked.append(what)
        answer = self.jobs[what]
        if isinstance(answer, SlurmError):
            raise answer
        return answer


def write_job(directory: Path, id: int, gpus: str, uid: int = 1000) -> None:
    (directory / str(id)).write_text(f"uid {uid}\ngpus {gpus}\nnode gpu1\n")


def test_jobs_are_mapped_to_their_gpus_and_asked_for_once(tmp_path: Path) -> None:
    write_job(tmp_path, 3, "0,1")
    write_job(tmp_path, 4, "0", uid=1001)
    (tmp_path / ".5").write_text("uid 1")
    slurm = Scontrol(
        job_3=job_text(), job_4=job_text("shard:1(IDX:0)"), node_gpu1="NodeName=gpu1 Gres=gpu:h200:4,shard:16 X=1"
    )
    now_s = [0.0]
    reader = SlurmJobsReader(tmp_path, slurm, lambda: now_s[0])
    first = reader.read()
    quarter = MappedJob("4", 1001, Fraction(1, 4))
    assert first.jobs == {(0, None): (MappedJob("3", 1000), quarter), (1, None): (MappedJob("3", 1000),)}
    assert reader.read() is first
    assert slurm.asked == ["job_3", "job_4", "node_gpu1"]
    (tmp_path / "4").unlink()
    assert reader.read().jobs[0, None] == (MappedJob("3", 1000),)


def test_a_job_that_slurm_has_ended_or_forgotten_holds_nothing(tmp_path: Path) -> None:
    write_job(tmp_path, 3, "0")
    write_job(tmp_path, 4, "1")
    slurm = Scontrol(job_3=UnknownJob("scontrol: Invalid job id specified"), job_4=job_text(state="CANCELLED"))
    assert SlurmJobsReader(tmp_path, slurm).read().jobs == {}


def test_while_slurm_does_not_answer_the_files_hold(tmp_path: Path) -> None:
    write_job(tmp_path, 3, "0")
    slurm = Scontrol(job_3=SlurmError("slurmctld does not answer"))
    now_s = [0.0]
    reader = SlurmJobsReader(tmp_path, slurm, lambda: now_s[0])
    reading = reader.read()
    assert reading.ids(0, None) == ("3",)
    assert reading.problems == ("job 3: slurmctld does not answer",)
    assert reader.read() is reading, "not asked again at once"
    slurm.jobs["job_3"] = job_text(state="FAILED")
    now_s[0] = 31.0
    assert reader.read().jobs == {}


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceAbsent, match="no job with GPUs has begun"):
        SlurmJobsReader(tmp_path / "none").read()


def test_a_job_runs_since_its_prolog(tmp_path: Path) -> None:
    write_job(tmp_path, 3, "0")
    begun_s = (tmp_path / "3").stat().st_mtime
    reader = SlurmJobsReader(tmp_path, Scontrol(job_3=job_text()), wall=lambda: begun_s + 90)
    reader.read()
    assert reader.read_hosts().by_id["3"][:2] == (4, 8000 << 20)
    assert reader.read_hosts().by_id["3"].run_s == 90
    (tmp_path / "3").unlink()
    assert reader.read_hosts().by_id["3"].run_s is None, "it ended after the last reading"
