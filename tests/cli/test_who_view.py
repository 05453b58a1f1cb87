"""The text of `gpucommons who`, with any characters in the names."""

import csv
import io
import re

from hypothesis import given
from hypothesis import strategies as st

from attribution.builders import GIB, container, gpu, gpu_process, identity, pod, reading, table
from attribution.cgroup_vectors import DASHED, UNDERSCORED, C
from gpucommons.cli.gpus_view import missing
from gpucommons.cli.one_sample import api_document
from gpucommons.cli.who import exact_who, explain, who_lines
from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import PidScope, PidView
from gpucommons.model.snapshot import Readings, Snapshot, SourceState
from gpucommons.model.viewer import Viewer
from gpucommons.model.workloads import PodReading
from gpucommons.owners.attribute import Attributor
from gpucommons.owners.process_identity import IdentityTable
from gpucommons.owners.workload import Surroundings
from gpucommons.rules.privacy import redact
from terminal import texts_of
from unhurried import costly

IN_POD = f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{C}.scope"
AROUND = Surroundings(
    {"d" * 64: container("d" * 64, "notebook", **{"ds01.user": "carol"})},
    PodReading.of([pod(DASHED, "train-0", "ml", main=C)]),
    user_names={1000: "alice"},
)
IDENTITIES = table(
    identity(7, IN_POD, uid=0, name="python"),
    identity(8, f"0::/docker-{'d' * 64}.scope"),
    identity(9, "0::/system.slice/slurmstepd.scope/job_4242/step_0/user/task_0", uid=1000),
    failures={10: Reason.PROCESS_GONE},
)


def taken(identities: IdentityTable = IDENTITIES) -> Snapshot:
    gpus = reading(
        gpu(0, [gpu_process(7, 2 * GIB, 40), gpu_process(8, GIB, 10)], used=4 * GIB, percent=60, watts=400.0),
        gpu(1, [gpu_process(9, GIB), gpu_process(10, GIB)], used=3 * GIB, percent=20, watts=100.0),
    )
    attribution = Attributor().attribute(gpus, identities, AROUND)
    return Snapshot(1, 0.0, 0.0, "host", readings=Readings(gpus=gpus, attribution=attribution))


def shown(snapshot: Snapshot, **parameters: str) -> str:
    who, gpus = api_document(snapshot, "who", parameters)["who"], api_document(snapshot, "gpus")["gpus"]
    lines = who_lines(who, gpus, None, of_user="user" in parameters)
    return "".join(f"{line}\n" for line in texts_of(lines))


def explained(snapshot: Snapshot, pid: int) -> str:
    document = api_document(snapshot, "who", {"pid": str(pid)})
    return explain(document["who"], document["explanations"])


SHOWN = """\
GPU 0  NVIDIA H200  4.0 GiB of 80.0 GiB used  SM 60 %  400 W
   MEMORY    SM   POWER  PID  PROCESS  USER        OWNER           CONTAINER
  2.0 GiB  40 %  ~267 W    7  python   ml/train-0  pod ml/train-0  3f1a5c7e9b2d
  1.0 GiB  10 %   ~67 W    8  python   alice       label carol     notebook
  unattributed 1.0 GiB: reserved by the driver, not used by a process
  unattributed SM 10 %, 67 W: the GPU was busy, but the driver sampled no process

GPU 1  NVIDIA H200  3.0 GiB of 80.0 GiB used  SM 20 %  100 W
   MEMORY     SM  POWER  PID  PROCESS  USER   OWNER           JOB
  1.0 GiB  ~10 %  ~50 W    9  python   alice  job 4242        4242
  1.0 GiB  ~10 %  ~50 W   10  -        -      (process_gone)  -
  unattributed 1.0 GiB: reserved by the driver, not used by a process
  unattributed 1.0 GiB, SM 10 %, 50 W: used by a process that ended before it was read

~: a share of what the driver measured for the GPU. Without ~: measured for the process.
"""


def test_parked_programs_are_below_and_fit_the_terminal() -> None:
    snapshot = taken()
    one = {
        **dict.fromkeys(("waits", "uid"), ""),
        "name": "emeka · jupyter-kernel (pid 4259)",
        "stage": "parked",
        "host_bytes": 29 * GIB,
        "sentence": "parked 11:20 because it was idle; wakes when it is used",
    }
    turns = {"parking": {"programs": {"k": one}, "arrivals": {}}}
    who, gpus = api_document(snapshot, "who")["who"], api_document(snapshot, "gpus")["gpus"]
    lines = texts_of(who_lines(who, gpus, 80, turns))
    assert max(map(len, lines)) <= 80
    assert lines[lines.index("parked") + 1].startswith("  emeka · jupyter-kernel (pid 4259): parked, 29.0 GiB")


def test_all_gpus() -> None:
    assert shown(taken()) == SHOWN


def test_as_csv_the_rows_of_a_gpu_sum_to_what_it_reports() -> None:
    found = api_document(taken(), "who")["who"]
    rows = list(csv.DictReader(io.StringIO(exact_who(found).as_csv())))
    assert [row["pid"] for row in rows if row["pid"]] == ["7", "8", "9", "10"]
    assert {row["reason"] for row in rows if not row["pid"]} >= {"driver_reserved", "no_utilization_sample"}
    for uuid, reported in found["reported"].items():
        parts = [row for row in rows if row["gpu_uuid"] == uuid and (row["owner"] or not row["pid"])]
        assert sum(int(row["memory_bytes"] or 0) for row in parts) == reported["memory_bytes"]


def test_one_user() -> None:
    text = shown(taken(), user="alice")
    assert "notebook" in text
    assert "4242" in text
    assert "train-0" not in text
    assert "unattributed" not in text
    assert shown(taken(), user="1000") == text
    assert "notebook" in shown(taken(), user="carol")
    of_pod = shown(taken(), user="ml/train-0")
    assert "train-0" in of_pod
    assert re.findall(r"^GPU \d", of_pod, re.MULTILINE) == ["GPU 0"], "with processes of others alone it is left out"
    assert "no process" not in of_pod


def test_one_gpu() -> None:
    assert "GPU 1" not in shown(taken(), gpu="GPU-0")
    assert "GPU 0" not in shown(taken(), gpu="GPU-1")


def test_each_step_of_one_process() -> None:
    assert explained(taken(), 8) == (
        "pid 8 on GPU 0\n"
        "  1. pid 8 is 'python', running as uid 1000 (alice)\n"
        f"  2. its cgroup names container {'d' * 12} (docker)\n"
        "  3. docker calls it 'notebook', image 'torch:2'\n"
        "  4. rule site: there are no site rules\n"
        "  5. rule pod: it is not in a pod\n"
        "  6. rule label: label ds01.user names carol\n"
        "  owner: label carol\n"
        "  memory 1.0 GiB (measured), SM 10 % (measured), power ~67 W (apportioned)\n"
    )


def test_a_process_without_an_owner_is_explained() -> None:
    assert "no owner: process_gone" in explained(taken(), 10)


def test_a_process_that_is_not_on_a_gpu() -> None:
    assert api_document(taken(), "who", {"pid": "4711"})["who"]["processes"] == {}


def test_the_reason_why_processes_are_hidden_is_shown() -> None:
    view = PidView(PidScope.NAMESPACE, "run with hostPID: true")
    text = shown(taken(table(view=view)))
    assert text.endswith("run with hostPID: true\n")


def test_processes_that_the_viewer_may_not_see_are_hidden_and_not_absent() -> None:
    mine = shown(redact(taken(), Viewer(False, 1000, "alice")))
    assert "  hidden: 1 process of other users, 2.0 GiB, SM 40 %, ~267 W" in mine
    assert "  8  python   alice" in mine, "next to one's own"
    text = shown(redact(taken(), Viewer(False)))
    assert "  hidden: 2 processes of other users, 3.0 GiB, SM 50 %, ~333 W" in text
    assert "  no process\n" not in text
    assert "alice" not in text


def test_the_reason_why_there_are_no_gpus_is_shown() -> None:
    state = SourceState("nvml", absent=True, detail="no NVIDIA driver", remedy="install it")
    snapshot = Snapshot(0, 0.0, 0.0, "host", sources={"nvml": state})
    assert missing(api_document(snapshot, "snapshot")) == "no GPU readings: no NVIDIA driver; install it"
    assert "no source" in missing(api_document(Snapshot(0, 0.0, 0.0, "host"), "snapshot"))


def test_a_gpu_without_processes() -> None:
    gpus = reading(gpu(0, used=None, percent=None, watts=None, total=None))
    attribution = Attributor().attribute(gpus, table(), Surroundings())
    snapshot = Snapshot(1, 0.0, 0.0, "host", readings=Readings(gpus=gpus, attribution=attribution))
    assert shown(snapshot) == "GPU 0  NVIDIA H200\n  no process\n"


@given(st.text(), st.text(min_size=1), st.text())
@costly(10)
def test_no_name_reaches_the_terminal_raw(process: str, label: str, name: str) -> None:
    around = Surroundings({C: container(C, name, name, **{"ds01.user": label})})
    gpus = reading(gpu(0, [gpu_process(7)]))
    identities = table(identity(7, f"0::/docker-{C}.scope", name=process))
    attribution = Attributor().attribute(gpus, identities, around)
    snapshot = Snapshot(1, 0.0, 0.0, "host", readings=Readings(gpus=gpus, attribution=attribution))
    for text in (shown(snapshot), explained(snapshot, 7)):
        assert all(character.isprintable() or character == "\n" for character in text)
    assert shown(snapshot).count("\n") == 6
