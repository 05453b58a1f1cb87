"""Parses the ids that device plugins give to GPUs, MIG devices and shares of them. Pure.

An id of an unknown form has only its text: the GPU that it names is unknown.
"""

import re

from gpucommons.model.workloads import DeviceId

_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"

# NVIDIA's plugin writes a replica as ::3, nvshare's as __3.
_REPLICA = r"(?:(?:::|__)(?P<replica>\d{1,9}))?"

_FORMS = (
    re.compile(rf"(?P<gpu>GPU-{_UUID}){_REPLICA}", re.ASCII),
    re.compile(rf"(?P<mig>MIG-{_UUID}){_REPLICA}", re.ASCII),
    # Drivers before R470 had no UUIDs for MIG devices.
    re.compile(rf"MIG-(?P<gpu>GPU-{_UUID})/(?P<gi>\d{{1,9}})/(?P<ci>\d{{1,9}}){_REPLICA}", re.ASCII),
    # GKE's plugin names device files.
    re.compile(r"nvidia(?P<index>\d{1,9})(?:/gi(?P<gi>\d{1,9}))?(?:/vgpu(?P<replica>\d{1,9}))?", re.ASCII),
)


def parse_device_id(raw: str) -> DeviceId:
    for form in _FORMS:
        if found := form.fullmatch(raw):
            parts = found.groupdict()
            return DeviceId(
                raw,
                gpu_uuid=parts.get("gpu"),
                gpu_index=_number(parts.get("index")),
                mig_uuid=parts.get("mig"),
                gpu_instance=_number(parts.get("gi")),
                compute_instance=_number(parts.get("ci")),
                replica=_number(parts.get("replica")),
            )
    return DeviceId(raw)


def _number(digits: str | None) -> int | None:
    return None if digits is None else int(digits)
