"""What `gpucommons who` shows, whatever the names hold."""

import json

from hypothesis import given
from hypothesis import strategies as st

from attribution.builders import GIB, container, gpu, gpu_process, identity, pod, reading, table
from attribution.cgroup_vectors import DASHED, UNDERSCORED, C
from gpucommons.attribution.attribute import Attributor
from gpucommons.attribution.process_identity import IdentityTable
from gpucommons.attribution.workload import Surroundings
from gpucommons.cli.who_view import RowFilter, as_rows, explain, render
from gpucommons.model.ownership import Reason
from gpucommons.model.pods import PodReading
from gpucommons.model.process_identity import PidScope, PidView
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.source_state import SourceState

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


SHOWN = """\
GPU 0  NVIDIA H200  4.0 GiB of 80.0 GiB used  SM 60 %  400 W
   MEMORY    SM   POWER  PID  PROCESS  USER   OWNER           CONTAINER     POD
  2.0 GiB  40 %  ~267 W    7  python   0      pod ml/train-0  3f1a5c7e9b2d  ml/train-0
  1.0 GiB  10 %   ~67 W    8  python   alice  label carol     notebook      -
  unattributed
  1.0 GiB     -     -  driver_reserved: kept by the driver, in no process
        -  10 %  67 W  no_utilization_sample: the GPU was busy, but no sample says for which process
        -     -   0 W  rounding: what is left after division into whole parts

GPU 1  NVIDIA H200  3.0 GiB of 80.0 GiB used  SM 20 %  100 W
   MEMORY     SM  POWER  PID  PROCESS  USER   OWNER           JOB
  1.0 GiB  ~10 %  ~50 W    9  python   alice  job 4242        4242
  1.0 GiB  ~10 %  ~50 W   10  -        -      (process_gone)  -
  unattributed
  1.0 GiB     -     -  driver_reserved: kept by the driver, in no process
  1.0 GiB  10 %  50 W  process_gone: used by a process that ended before it could be looked at

~ is a share of what the driver measured of the GPU; without it, the driver measured the process.
"""


def test_the_whole_picture() -> None:
    assert render(taken(), RowFilter()) == SHOWN


def test_one_user() -> None:
    text = render(taken(), RowFilter(user="alice"))
    assert "notebook" in text
    assert "4242" in text
    assert "train-0" not in text
    assert "unattributed" not in text
    assert render(taken(), RowFilter(user="1000")) == text
    assert "notebook" in render(taken(), RowFilter(user="carol"))


def test_one_gpu() -> None:
    assert "GPU 1" not in render(taken(), RowFilter(gpu="0"))
    assert "GPU 0" not in render(taken(), RowFilter(gpu="GPU-1"))


def test_json_says_the_same_in_plain_units() -> None:
    value = as_rows(taken(), RowFilter())
    first, second = json.loads(json.dumps(value))["gpus"]
    row = first["processes"][0]
    assert (row["pid"], row["user"], row["uid"]) == (7, None, 0)
    assert row["owner"] == {"kind": "pod", "id": DASHED, "name": "train-0", "namespace": "ml"}
    assert row["pod"] == {"uid": DASHED, "name": "train-0", "namespace": "ml", "container": "main"}
    assert row["memory_bytes"] == {"value": 2 * GIB, "basis": "measured"}
    assert row["sm_ratio"] == {"value": 0.4, "basis": "measured"}
    assert row["power_watts"]["basis"] == "apportioned"
    assert second["processes"][1]["reason"] == "process_gone"
    owned = sum(row["memory_bytes"]["value"] for row in first["processes"])
    assert owned + sum(rest["memory_bytes"] or 0 for rest in first["unattributed"]) == first["memory_used_bytes"]


def test_json_for_one_user_and_gpu() -> None:
    value = json.loads(json.dumps(as_rows(taken(), RowFilter(user="alice", gpu="1"))))
    (only,) = value["gpus"]
    assert [row["pid"] for row in only["processes"]] == [9]
    assert only["unattributed"] == []


def test_each_step_of_one_process() -> None:
    assert explain(taken(), 8) == (
        "pid 8 on GPU 0\n"
        "  1. pid 8 is 'python', running as uid 1000 (alice)\n"
        f"  2. its cgroup names container {'d' * 12} (docker)\n"
        "  3. docker calls it 'notebook', image 'torch:2'\n"
        "  4. rule site: the site has none\n"
        "  5. rule pod: it is in no pod\n"
        "  6. rule label: label ds01.user names carol\n"
        "  owner: label carol\n"
        "  memory 1.0 GiB (measured), SM 10 % (measured), power ~67 W (apportioned)\n"
    )


def test_a_process_without_an_owner_is_explained_too() -> None:
    text = explain(taken(), 10)
    assert text is not None
    assert "no owner: process_gone" in text


def test_a_process_on_no_gpu() -> None:
    assert explain(taken(), 4711) is None
    assert explain(Snapshot(0, 0.0, 0.0, "host"), 7) is None


def test_what_hides_processes_is_said() -> None:
    view = PidView(PidScope.NAMESPACE, "run with hostPID: true")
    text = render(taken(table(view=view)), RowFilter())
    assert text.endswith("run with hostPID: true\n")
    assert as_rows(taken(table(view=view)), RowFilter())["note"] == "run with hostPID: true"


def test_without_gpus_it_is_said_why() -> None:
    state = SourceState("nvml", absent=True, detail="no NVIDIA driver", remedy="install it")
    snapshot = Snapshot(0, 0.0, 0.0, "host", sources={"nvml": state})
    assert render(snapshot, RowFilter()) == "no GPU readings: no NVIDIA driver; install it\n"
    assert as_rows(snapshot, RowFilter()) == {"gpus": [], "note": "no GPU readings: no NVIDIA driver; install it"}
    assert "not read" in render(Snapshot(0, 0.0, 0.0, "host"), RowFilter())


def test_a_gpu_without_processes() -> None:
    gpus = reading(gpu(0, used=None, percent=None, watts=None, total=None))
    attribution = Attributor().attribute(gpus, table(), Surroundings())
    snapshot = Snapshot(1, 0.0, 0.0, "host", readings=Readings(gpus=gpus, attribution=attribution))
    assert render(snapshot, RowFilter()) == "GPU 0  NVIDIA H200\n  no process\n"


@given(st.text(), st.text(min_size=1), st.text())
def test_no_name_reaches_the_terminal_raw(process: str, label: str, name: str) -> None:
    around = Surroundings({C: container(C, name, name, **{"ds01.user": label})})
    gpus = reading(gpu(0, [gpu_process(7)]))
    identities = table(identity(7, f"0::/docker-{C}.scope", name=process))
    attribution = Attributor().attribute(gpus, identities, around)
    snapshot = Snapshot(1, 0.0, 0.0, "host", readings=Readings(gpus=gpus, attribution=attribution))
    for text in (render(snapshot, RowFilter()), explain(snapshot, 7) or ""):
        assert all(character.isprintable() or character == "\n" for character in text)
    assert render(snapshot, RowFilter()).count("\n") == 7
