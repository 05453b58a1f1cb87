"""The printed lines of slurm.conf and gres.conf; tests/slurm/test_cluster.py starts a real Slurm with them."""

from dataclasses import replace
from itertools import pairwise

from gpucommons.slurm.configuration import NodePlan, files, targets

PLAN = NodePlan(
    "gpu1",
    ("/dev/nvidia0", "/dev/nvidia1"),
    "h200",
    0,
    False,
    16,
    "/etc/slurm/gpucommons",
    "/opt/python -I -S /opt/hooks.py",
    "/opt/gpucommons",
)


def settings_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_every_setting_is_explained() -> None:
    for plan in (PLAN, replace(PLAN, shards=4), replace(PLAN, day_night=True)):
        for name in ("gres.conf", "slurm.conf"):
            for before, line in pairwise(files(plan)[name].splitlines()):
                if not line.startswith("#") and not before.startswith("#"):
                    # One explanation for lines that differ in a file only, and for the two settings of the check.
                    assert line.partition("File=")[0] == before.partition("File=")[0] or "HealthCheck" in line


def test_shards() -> None:
    found = files(replace(PLAN, shards=4))
    assert "Name=shard Count=4 File=/dev/nvidia1" in settings_of(found["gres.conf"])
    assert "GresTypes=gpu,shard" in settings_of(found["slurm.conf"])
    assert "NodeName=gpu1 Gres=gpu:h200:2,shard:8 ..." in settings_of(found["slurm.conf"])


def test_shards_under_mps_limit_the_memory_of_a_job() -> None:
    found = files(replace(PLAN, shards=4, mps_memory_mib=143771))
    assert "TaskProlog=/etc/slurm/gpucommons/task-prolog.sh" in settings_of(found["slurm.conf"])
    assert "task-prolog --shard-mib 35942\n" in found["task-prolog.sh"]
    without = files(replace(PLAN, shards=4))
    assert "TaskProlog" not in without["slurm.conf"]
    assert "shard-mib" not in without["task-prolog.sh"]


def test_day_and_night_have_device_nodes_of_their_own() -> None:
    found = files(replace(PLAN, day_night=True))
    used = [line.partition("File=")[2].split()[0] for line in settings_of(found["gres.conf"]) if "File=" in line]
    assert len(used) == len(set(used)) == 4
    assert all(path in found["night-devices.sh"] for path in used)
    assert "task-prolog --gpus 2" in found["task-prolog.sh"]


def test_a_script_ends_with_status_0() -> None:
    scripts = [text for name, text in files(PLAN).items() if name.endswith(".sh")]
    assert len(scripts) == 5
    for text in scripts:
        assert text.startswith("#!/bin/sh\n")
        assert text.endswith("\nexit 0\n")


def test_scripts_that_call_slurm_have_what_its_daemons_do_not_give_them() -> None:
    found = files(replace(PLAN, environment={"PATH": "/opt/slurm/bin:/bin", "SLURM_CONF": "/a b/slurm.conf"}))
    for name in ("health", "admin-comment"):
        script = found[f"{name}.sh"]
        exports = "export PATH=/opt/slurm/bin:/bin\nexport SLURM_CONF='/a b/slurm.conf'\n"
        assert f"{exports}/opt/gpucommons slurm {name}\n" in script
    assert "export" not in found["prolog.sh"]


def test_targets_are_the_nodes_with_gpus() -> None:
    sinfo = (
        "gpu1|10.0.0.1|day|gpu:h200:8\ngpu1|10.0.0.1|night|gpu:h200:8\ncpu1|cpu1|day|(null)\ngpu2|fd00::2|day|gpu:1\n"
    )
    found = targets(sinfo, 9460, gpus_only=True)
    assert found == [
        {"targets": ["10.0.0.1:9460"], "labels": {"node": "gpu1", "slurm_partition": "day,night"}},
        {"targets": ["[fd00::2]:9460"], "labels": {"node": "gpu2", "slurm_partition": "day"}},
    ]
    assert len(targets(sinfo, 9460, gpus_only=False)) == 3
