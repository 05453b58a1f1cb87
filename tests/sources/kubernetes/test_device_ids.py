"""Every known form of device id; no other text makes the parser fail or guess."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.model.workloads import DeviceId
from gpucommons.sources.kubernetes.kubelet import parse_device_id

U = "8dba0ca8-1d7a-4e1c-9a6e-6d2b0c0a11ff"
GPU, MIG = f"GPU-{U}", f"MIG-{U}"


@pytest.mark.parametrize(
    "expected",
    [
        DeviceId(GPU, gpu_uuid=GPU),
        DeviceId(f"{GPU}::3", gpu_uuid=GPU, replica=3),
        DeviceId(f"{GPU}__12", gpu_uuid=GPU, replica=12),
        DeviceId(MIG, mig_uuid=MIG),
        DeviceId(f"{MIG}::7", mig_uuid=MIG, replica=7),
        DeviceId(f"MIG-{GPU}/9/0", gpu_uuid=GPU, gpu_instance=9, compute_instance=0),
        DeviceId(f"MIG-{GPU}/9/0::1", gpu_uuid=GPU, gpu_instance=9, compute_instance=0, replica=1),
        DeviceId("nvidia0/gi3/vgpu1", gpu_index=0, gpu_instance=3, replica=1),
        DeviceId("nvidia0/vgpu2", gpu_index=0, replica=2),
        DeviceId("nvidia12/gi3", gpu_index=12, gpu_instance=3),
        DeviceId("nvidia7", gpu_index=7),
    ],
    ids=lambda id: id.raw,
)
def test_forms(expected: DeviceId) -> None:
    assert parse_device_id(expected.raw) == expected
    assert expected.is_known


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "0",
        "GPU-",
        f"GPU-{U}::",
        f"GPU-{U}::x",
        f"GPU-{U}::-1",
        f"GPU-{U}::٣",
        f"{GPU}\n",
        f" {GPU}",
        f"MIG-{GPU}",
        f"MIG-{GPU}/1",
        "nvidiactl",
        "nvidia0/gi",
        "nvidia0/vgpu1/gi2",
        f"GPU-{U}::{'9' * 5000}",
    ],
)
def test_an_unknown_form_has_only_its_text(raw: str) -> None:
    assert parse_device_id(raw) == DeviceId(raw)
    assert not parse_device_id(raw).is_known


@given(raw=st.text() | st.from_regex(r"(MIG-)?(GPU-)?[0-9a-f-]{30,40}(/\d+){0,3}(::\d*)?", fullmatch=True))
def test_any_text_is_kept(raw: str) -> None:
    assert parse_device_id(raw).raw == raw
