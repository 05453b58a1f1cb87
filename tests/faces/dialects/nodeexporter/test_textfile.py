"""Metrics of text files: the parser by itself, and directories that the agent and Debian's node_exporter both read."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faces.dialects.nodeexporter.comparison import of_the_machine
from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.faces.dialects.nodeexporter import NODEEXPORTER
from gpucommons.faces.exposition.exposition import DialectRenderer, Exposition
from gpucommons.model.host import TextFamily, TextFilesReading, TextSample
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.sources.host.textfile import TextFileError, TextFileReader, parse_text
from needs import needs_root
from parsing import Series, parsed, same, types_of
from promtool import judged
from running import running_agent
from testbeds.node_exporter import fetched, running_node_exporter
from waiting import until

GOOD = {
    "backup.prom": (
        "# HELP backup_age_seconds Age of the last backup.\n# TYPE backup_age_seconds gauge\n"
        'backup_age_seconds{job="home",path="C:\\\\x \\"quoted\\"\\n"} 1.5e3\n'
        'backup_age_seconds{ path = "/" , } +Inf\nbackup_age_seconds NaN\n\n'
        "# a comment\n#\n# TYPE backup_runs_total COUNTER\nbackup_runs_total 7\n"
    ),
    "bare.prom": 'without_type_or_help 3\n  indented_value\t{a="b"}\t-0.25\n',
    "more.prom": '# TYPE backup_runs_total counter\nbackup_runs_total{host="other"} 8\n',
    "latency.prom": (
        "# TYPE latency_seconds histogram\n# HELP latency_seconds Latency.\n"
        'latency_seconds_bucket{op="get",le="0.1"} 3\nlatency_seconds_bucket{op="get",le="+Inf"} 4\n'
        'latency_seconds_sum{op="get"} 0.9\nlatency_seconds_count{op="get"} 4\n'
        '# TYPE took_seconds summary\ntook_seconds{quantile="0.5"} 0.2\ntook_seconds_sum 2\ntook_seconds_count 10\n'
    ),
    "empty.prom": "",
    "notes.txt": "not for us\n",
}
BAD = {
    "cut_off.prom": "first 1\nsecond 2",
    "stamped.prom": "old 1 1700000000000\n",
    "value.prom": "worth much\n",
    "labels.prom": 'torn{a="b} 1\n',
    "late.prom": "late 1\n# TYPE late gauge\n",
    "type.prom": "# TYPE odd meter\nodd 1\n",
    "twice.prom": "# HELP one a\n# HELP one b\none 1\n",
    "name.prom": "2nd 1\n",
    "reserved.prom": 'fine{__name__="node_load1"} 1\n',
}


def written(directory: Path, files: dict[str, str]) -> Path:
    directory.mkdir(parents=True)
    for number, (name, text) in enumerate(files.items()):
        (directory / name).write_text(text)
        os.utime(directory / name, (1_700_000_000.9 + number, 1_700_000_000.9 + number))
    return directory


def of_files(text: str) -> Series:
    """The series that come from files or are about them."""
    ours = of_the_machine(text)
    named = (
        "node_textfile_",
        "backup_",
        "without_",
        "indented_",
        "latency_",
        "took_",
        "first",
        "second",
        "node_scrape_",
    )
    kept = {key: value for key, value in ours.items() if key[0].startswith(named)}
    return {
        key: value for key, value in kept.items() if not key[0].startswith("node_scrape_") or "textfile" in str(key)
    }


@contextmanager
def both(directory: str) -> Iterator[tuple[str, str]]:
    """Both expositions, read once."""
    environment = {"GPUCOMMONS_NODEEXPORTER_TEXTFILE_DIRECTORY": directory}
    with (
        running_node_exporter(f"--collector.textfile.directory={directory}") as theirs,
        running_agent(environment=environment) as agent,
    ):
        until(lambda: "node_textfile_scrape_error" in agent.get("/metrics/nodeexporter")[1], "text files are read")
        yield agent.get("/metrics/nodeexporter")[1], fetched(theirs)


def compared(ours: str, theirs: str) -> list[str]:
    left, right = of_files(ours), of_files(theirs)
    return [
        f"{key}: ours {left.get(key)!r}, theirs {right.get(key)!r}"
        for key in left.keys() | right.keys()
        if key[0] != "node_scrape_collector_duration_seconds"
        and not (key in left and key in right and same(left[key], right[key]))
    ]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    with both(str(written(tmp_path_factory.mktemp("text") / "good", GOOD))) as texts:
        return texts


@pytest.mark.long
def test_files_are_served_as_node_exporter_serves_them(good: tuple[str, str]) -> None:
    ours, theirs = good
    assert compared(ours, theirs) == []
    assert len(of_files(ours)) > 15, "there are series to compare"
    assert of_files(ours)["node_textfile_scrape_error", ()] == 0
    own, peer = types_of(ours), types_of(theirs)
    for name in ("backup_age_seconds", "backup_runs", "latency_seconds", "took_seconds", "without_type_or_help"):
        assert own[name] == peer[name]


@pytest.mark.long
def test_promtool_has_no_complaint_about_the_format(good: tuple[str, str]) -> None:
    assert not [line for line in judged(good[0]) if line.startswith("error")]


@pytest.mark.long
def test_a_difference_is_seen(good: tuple[str, str]) -> None:
    ours, theirs = good
    assert compared(ours.replace("backup_runs_total 7", "backup_runs_total 8"), theirs)
    assert compared(re.sub("(?m)^took_seconds_sum.*\n", "", ours), theirs)


@pytest.mark.parametrize("name", BAD)
def test_one_bad_file_costs_itself(name: str, tmp_path: Path) -> None:
    reading = TextFileReader(str(written(tmp_path / "bad", {name: BAD[name], "fine.prom": "fine 1\n"}))).read()
    assert {family.name for family in reading.families} == {"fine"}
    assert [Path(path).name for path in reading.modified_s] == ["fine.prom"]
    ((path, problem),) = reading.problems.items()
    assert path.endswith(name)
    assert problem.startswith("line ")


@pytest.mark.long
def test_both_refuse_the_same_files(tmp_path: Path) -> None:
    with both(str(written(tmp_path / "bad", BAD | GOOD))) as (ours, theirs):
        assert compared(ours, theirs) == []
        assert of_files(ours)["node_textfile_scrape_error", ()] == 1


@pytest.mark.long
def test_a_directory_that_does_not_exist_is_an_error_and_none_is_not(tmp_path: Path) -> None:
    assert TextFileReader("").read() == TextFilesReading()
    with both(str(tmp_path / "nowhere")) as (ours, theirs):
        assert compared(ours, theirs) == []
        assert of_files(ours)["node_textfile_scrape_error", ()] == 1


def test_a_pattern_fits_several_directories(tmp_path: Path) -> None:
    written(tmp_path / "a/out", {"x.prom": "from_a 1\n"})
    written(tmp_path / "b/out", {"x.prom": "from_b 2\n"})
    reading = TextFileReader(f"{tmp_path}/*/out").read()
    assert {family.name for family in reading.families} == {"from_a", "from_b"}


def test_a_pipe_and_a_large_file_do_not_hold_up_the_others(tmp_path: Path) -> None:
    directory = written(tmp_path / "odd", {"fine.prom": "fine 1\n"})
    os.mkfifo(directory / "pipe.prom")
    with (directory / "large.prom").open("wb") as large:
        large.truncate(1 << 30)
    reading = TextFileReader(str(directory)).read()
    assert [family.name for family in reading.families] == ["fine"]
    assert {Path(path).name for path in reading.problems} == {"pipe.prom", "large.prom"}


def test_a_file_is_parsed_when_it_has_changed(tmp_path: Path) -> None:
    reader = TextFileReader(str(written(tmp_path / "x", {"x.prom": "x 1\n"})))
    first = reader.read().families[0]
    assert reader.read().families[0].samples[0] is first.samples[0]
    (tmp_path / "x/x.prom").write_text("x 2\n")
    assert reader.read().families[0].samples[0].value == 2
    (tmp_path / "x/x.prom").unlink()
    assert reader.read() == TextFilesReading()


def test_files_that_contradict_each_other_are_reported(tmp_path: Path) -> None:
    files = {"a.prom": "# TYPE x gauge\nx 1\ny 1\n", "b.prom": "# TYPE x counter\nx 2\n", "c.prom": "y 3\n"}
    reading = TextFileReader(str(written(tmp_path / "x", files))).read()
    assert [(family.name, family.samples[0].value) for family in reading.families] == [("x", 1), ("y", 1)]
    assert {Path(path).name for path in reading.problems} == {"b.prom", "c.prom"}


def test_a_file_cannot_replace_a_metric_of_the_machine() -> None:
    families = tuple(
        TextFamily(name, "gauge", "", (TextSample(name, (), 5.0),))
        for name in ("node_load1", "node_textfile_scrape_error", "own")
    )
    snapshot = Snapshot(0, 0.0, 0.0, "host", readings=Readings(text_files=TextFilesReading(families)))
    body, _ = Exposition(lambda: snapshot, DIALECTS).metrics("nodeexporter", openmetrics=False, gzip=False)
    assert parsed(body.decode()) == {("own", ()): 5, ("node_textfile_scrape_error", ()): 1}
    fine = snapshot._replace(readings=Readings(text_files=TextFilesReading(families[2:])))
    body, _ = Exposition(lambda: fine, DIALECTS).metrics("nodeexporter", openmetrics=True, gzip=False)
    assert parsed(body.decode(), openmetrics=True)["node_textfile_scrape_error", ()] == 0


def test_metrics_that_change_their_help_do_not_accumulate() -> None:
    renderer = DialectRenderer(NODEEXPORTER)
    for number in range(2000):
        family = TextFamily("own", "gauge", f"Help number {number}.", (TextSample("own", (), 1.0),))
        reading = TextFilesReading((family,))
        renderer.render(Snapshot(number, 0.0, 0.0, "host", readings=Readings(text_files=reading)))
    assert len(renderer._renderers) < 1000


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        families = parse_text(text)
    except TextFileError:
        return
    assert all(family.samples for family in families)


@given(
    st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(), max_size=3),
    st.floats(allow_nan=False),
)
def test_what_is_served_is_parsed_as_the_same(labels: dict[str, str], value: float) -> None:
    sample = TextSample("x", tuple(labels.items()), value)
    reading = TextFilesReading((TextFamily("x", "gauge", "Help.", (sample,)),))
    snapshot = Snapshot(0, 0.0, 0.0, "host", readings=Readings(text_files=reading))
    body, _ = Exposition(lambda: snapshot, DIALECTS).metrics("nodeexporter", openmetrics=False, gzip=False)
    (again,) = [family for family in parse_text(body.decode()) if family.name == "x"]
    assert again.samples == (sample,)


def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    """Root may read files that the maker of the link may not. What is quoted of a file that is not valid is short."""
    needs_root()
    secret = tmp_path / "shadow"
    secret.write_text("root:$y$j9T$secret:19000:0:99999:7:::\n")
    directory = tmp_path / "metrics"
    directory.mkdir()
    (directory / "theirs.prom").symlink_to(secret)
    os.lchown(directory / "theirs.prom", 4713, 4713)
    (tmp_path / "ours").write_text("a_metric 1\n")
    (directory / "ours.prom").symlink_to("../ours")
    reading = TextFileReader(str(directory)).read()
    assert [family.name for family in reading.families] == ["a_metric"]
    assert reading.problems == {str(directory / "theirs.prom"): "a link that another user has made is not followed"}
    (directory / "long.prom").write_text("a_metric " + "x" * 5000 + "\n")
    assert len(TextFileReader(str(directory)).read().problems[str(directory / "long.prom")]) < 200


def test_a_link_of_root_that_leads_to_one_of_another_user_is_not_followed(tmp_path: Path) -> None:
    needs_root()
    secret, theirs, ours = tmp_path / "secret", tmp_path / "home.prom", tmp_path / "text/linked.prom"
    ours.parent.mkdir()
    secret.write_text("hidden_from_them 1\n")
    theirs.symlink_to(secret)
    ours.symlink_to(theirs)
    reader = TextFileReader(str(ours.parent))
    assert [family.name for family in reader.read().families] == ["hidden_from_them"], "root's links are followed"
    os.lchown(theirs, 20010, 20010)
    assert reader.read() == TextFilesReading(problems={str(ours): "a link that another user has made is not followed"})


def test_labels_of_a_family_are_limited() -> None:
    text = "".join(f'many{{label_{number}="x"}} 1\n' for number in range(65))
    with pytest.raises(TextFileError, match="more than 64 labels"):
        parse_text(text)
    (family,) = parse_text("".join(text.splitlines(keepends=True)[:64]))
    assert {len(sample.labels) for sample in family.samples} == {64}


def test_files_of_another_user_cost_no_more_than_their_share_and_take_nothing_from_root(tmp_path: Path) -> None:
    needs_root()
    theirs = [tmp_path / f"{number:03}.prom" for number in range(200)]
    for number, path in enumerate(theirs):
        path.write_text("".join(f"a{number}_{line} 1\n" for line in range(3000 if number < 3 else 3)))
        os.chown(path, 20010, 20010)
    own, another = tmp_path / "root.prom", tmp_path / "another.prom"
    own.write_text("# TYPE a0_0 counter\na0_0 7\n" + "".join(f"own_{line} 1\n" for line in range(6000)))
    another.write_text("other 1\n")
    os.chown(another, 20011, 20011)
    reader = TextFileReader(str(tmp_path))
    reading = reader.read()
    read = set(reading.modified_s)
    assert {str(own), str(another), str(theirs[3])} <= read
    assert str(theirs[1]) not in read, "3,000 and 3,000 are more than 5,000 series"
    assert len(read) <= 128 + 2
    families = {family.name: family for family in reading.families}
    assert families["a0_0"].samples == (TextSample("a0_0", (), 7.0),), "root's comes first"
    assert reader.read() is reading, "nothing has changed"
    theirs[0].unlink()
    assert str(theirs[1]) in reader.read().modified_s, "there is room for it now"
