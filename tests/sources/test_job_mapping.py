"""Job mapping files: the jobs are read, and an invalid file does not affect the others."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.model.workloads import JobMappingReading, MappedJob
from gpucommons.sources.mapping_files import JobMappingReader, parse_jobs
from gpucommons.sources.source import SourceAbsent, SourceError

ALICE, NOBODY, DEBIAN_SLURM = 1000, 65534, 64030


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = tmp_path / "jobs"
    found.mkdir()
    return found


def read(directory: Path) -> JobMappingReading:
    return JobMappingReader(directory).read()


def ids(reading: JobMappingReading) -> dict[tuple[int, int | None], list[str]]:
    return {place: [job.id for job in jobs] for place, jobs in reading.jobs.items()}


def test_files_are_gpus_and_gpu_instances_and_lines_are_jobs(directory: Path) -> None:
    (directory / "0").write_text("4711\n")
    (directory / "2").write_text("4712\n\n 4713_7 \n4712\n")
    (directory / "3.10").write_text("4714")
    reading = read(directory)
    assert ids(reading) == {(0, None): ["4711"], (2, None): ["4712", "4713_7"], (3, 10): ["4714"]}
    assert reading.problems == ()
    assert reading.ids(3, 10) == ("4714",)
    assert reading.ids(3, None) == ()


@pytest.mark.parametrize("name", ["00", "-1", "1.", ".1", "1.2.3", "gpu0", "0.txt", "0~", "99999", "٣", "1\n"])
def test_other_file_names_are_ignored(directory: Path, name: str) -> None:
    (directory / name).write_text("1\n")
    assert read(directory) == JobMappingReading()


def test_an_empty_file_has_no_jobs(directory: Path) -> None:
    (directory / "0").write_text("\n \n")
    assert read(directory) == JobMappingReading()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize(
    ("owner", "uid"), [(ALICE, ALICE), (0, None), (999, None), (NOBODY, None), (DEBIAN_SLURM, None)]
)
def test_the_owner_of_a_file_is_the_user_unless_it_is_a_system_user(
    directory: Path, owner: int, uid: int | None
) -> None:
    (directory / "0").write_text("4711\n")
    (directory / "1").write_text("1\n2\n")
    for name in ("0", "1"):
        os.chown(directory / name, owner, owner)
    reading = read(directory)
    assert reading.jobs[0, None] == (MappedJob("4711", uid),)
    assert reading.jobs[1, None] == (MappedJob("1"), MappedJob("2")), "one owner cannot be the user of two jobs"


def test_garbage_is_left_out_and_reported(directory: Path) -> None:
    (directory / "0").write_bytes(b"4711\n\x00\x01\x1b[2J\n" + b"x" * 300 + b"\n\xff\xfe\n")
    (directory / "1").write_text("8\n")
    reading = read(directory)
    assert ids(reading) == {(0, None): ["4711", "��"], (1, None): ["8"]}
    assert reading.problems == (f"{directory}/0: has lines that are not job ids; they are ignored",)


def test_a_huge_file_is_read_in_part(directory: Path) -> None:
    with (directory / "0").open("wb") as file:
        file.write(b"4711\n")
        file.truncate(10 << 30)
    (directory / "1").write_text("".join(f"{number}\n" for number in range(100)))
    reading = read(directory)
    assert ids(reading)[0, None] == ["4711"]
    assert len(reading.jobs[1, None]) == 64
    assert [line.partition(": ")[2] for line in reading.problems] == [
        "larger than 65536 bytes; the rest is ignored",
        "names more than 64 jobs; the rest is ignored",
    ]


def test_links_and_pipes_are_not_read(directory: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("password\n")
    os.mkfifo(directory / "0")
    (directory / "1").symlink_to(secret)
    (directory / "2").mkdir()
    (directory / "3").write_text("5\n")
    reading = read(directory)
    assert ids(reading) == {(3, None): ["5"]}
    assert len(reading.problems) == 3
    assert "password" not in str(reading)


def test_an_unreadable_file_does_not_affect_the_others() -> None:
    # Below /tmp: the test changes to another user, since root can read all files, and pytest's directories are private.
    with tempfile.TemporaryDirectory() as name:
        directory, user = Path(name), os.geteuid()
        directory.chmod(0o755)
        (directory / "0").write_text("1\n")
        (directory / "1").write_text("2\n")
        (directory / "0").chmod(0)
        try:
            if user == 0:
                os.seteuid(NOBODY)
            reading = read(directory)
        finally:
            os.seteuid(user)
    assert ids(reading) == {(1, None): ["2"]}
    assert reading.problems == (f"{directory}/0: Permission denied",)


def test_the_reading_is_the_same_object_until_a_file_changes(directory: Path) -> None:
    source = JobMappingReader(directory)
    (directory / "0").write_text("1\n")
    first = source.read()
    assert source.read() is first
    (directory / "0").unlink()
    assert source.read() == JobMappingReading()
    (directory / "0").write_text("2\n")
    assert ids(source.read()) == {(0, None): ["2"]}


def test_a_missing_directory_is_absent_and_a_file_in_its_place_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceAbsent, match=r"job mapping directory .* does not exist"):
        read(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="Not a directory"):
        read(tmp_path / "file")


@given(st.binary(max_size=500))
def test_no_bytes_raise(data: bytes) -> None:
    jobs, _ = parse_jobs(data)
    assert len(set(jobs)) == len(jobs) <= 64
    assert all(0 < len(job) <= 256 and job.isprintable() for job in jobs)
