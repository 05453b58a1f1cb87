"""Which GPUs the CDI files of a host describe, and which runtimes take such devices from the kubelet."""

import json
from pathlib import Path

import pytest

from gpucommons.sources.kubernetes.cdi import cdi_uuids, runtime_has_cdi

_UUIDS = [f"GPU-0000000{index}-0000-0000-0000-000000000000" for index in range(2)]


def test_cdi_files_name_the_gpus(tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").write_text(
        f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: '0'\n- name: {_UUIDS[0]}\n- name: all\n"
    )
    (tmp_path / "more.json").write_text(json.dumps({"kind": "nvidia.com/gpu", "devices": [{"name": _UUIDS[1]}, 7]}))
    (tmp_path / "other.yaml").write_text("kind: intel.com/gpu\ndevices:\n- name: other\n")
    (tmp_path / "broken.yaml").write_text("kind: [")
    (tmp_path / "notes.txt").write_text("kind: nvidia.com/gpu\ndevices:\n- name: notes\n")
    assert cdi_uuids([tmp_path, tmp_path / "missing"]) == {"0", "all", *_UUIDS}


@pytest.mark.parametrize(
    ("version", "has"),
    [
        ("containerd://2.0.1", True),
        ("containerd://v2.1.0-rc.1", True),
        ("containerd://1.7.24", False),
        ("cri-o://1.31.0", True),
        ("cri-o://1.27.9", False),
        ("docker://29.0.0", False),
        ("", False),
        ("containerd://next", False),
    ],
)
def test_which_runtimes_take_cdi_devices(version: str, has: bool) -> None:
    assert runtime_has_cdi(version) is has
