"""The GPUs in four vocabularies: the names and labels that dashboards know, and missing values are absent, not 0."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.faces.dialects.dcgm import CATALOGUE as DCGM_CATALOGUE
from gpucommons.faces.dialects.dcgm import DCGM, dcgm_dialect
from gpucommons.faces.dialects.dcgm.labels import DcgmOptions
from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.dialects.gpucommons import GPUCOMMONS
from gpucommons.faces.dialects.node import NODE
from gpucommons.faces.dialects.nvshare import NVSHARE
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.gpu import (
    ClockSample,
    GpmReading,
    Gpu,
    GpuIdentity,
    GpuProcess,
    GpuReading,
    GpuReadings,
    LaneMove,
    MigInstance,
    MigMemory,
    NvLinkRates,
    XidRecord,
)
from gpucommons.model.snapshot import Readings, Snapshot
from parsing import Series, parsed
from unhurried import costly

GIB, MIB = 2**30, 2**20
NOW = 1_700_000_000.0
UUID, OTHER = "GPU-a", "GPU-b"


def identity(uuid: str = UUID, index: int = 0) -> GpuIdentity:
    return GpuIdentity(
        uuid,
        index,
        "NVIDIA H200",
        f"00000000:0{index}:00.0",
        minor=index,
        serial="1654",
        architecture="hopper",
        power_limit_default_watts=700.0,
        temperature_slowdown_celsius=89,
        clock_sm_max_mhz=1980,
        pcie_generation_max=5,
    )


FULL = GpuReadings(
    utilization_percent=87,
    memory_utilization_percent=29,
    memory_total_bytes=100 * GIB,
    memory_used_bytes=40 * GIB,
    memory_free_bytes=59 * GIB,
    memory_reserved_bytes=1 * GIB,
    power_watts=512.5,
    power_limit_watts=650.0,
    temperature_celsius=63,
    memory_temperature_celsius=52,
    clock_sm_mhz=1485,
    clock_memory_mhz=3201,
    encoder_percent=1,
    decoder_percent=2,
    jpeg_percent=3,
    performance_state=0,
    throttle_mask=0x44,
    energy_millijoules=5_474_928,
    pcie_replays=3,
    ecc_corrected_volatile=4,
    ecc_uncorrected_volatile=0,
    ecc_corrected_aggregate=6,
    ecc_uncorrected_aggregate=7,
    remapped_rows_corrected=8,
    remapped_rows_uncorrected=9,
    remapped_rows_pending=0,
    remapped_rows_failed=0,
    power_violation_ns=3_965_869_216,
    thermal_violation_ns=0,
    sync_boost_violation_ns=12,
    board_limit_violation_ns=13,
    low_utilization_violation_ns=14,
    reliability_violation_ns=15,
    retired_pages_single_bit=16,
    retired_pages_double_bit=17,
    retired_pages_pending=1,
    nvlink_tx_kibibytes=10,
    nvlink_rx_kibibytes=11,
    nvlink_replays=20,
    nvlink_recoveries=21,
    nvlink_crc_flit_errors=22,
    nvlink_crc_data_errors=23,
    vgpu_licensed=0,
    recovery_action=0,
)
GPM = GpmReading(0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.24, 0.23, 0.22, 0.2, 1000.0, 2000.0, 3000.0, 4000.0)
PROCESSES = (
    GpuProcess(10, None, "compute", 3 * GIB, 40, 20, 0, 0),
    GpuProcess(11, None, "graphics", None),
    GpuProcess(12, None, "compute+graphics", 1 * GIB, 0, 0, 0, 0),
)


def gpu(**changes: object) -> Gpu:
    base = Gpu(
        identity(),
        True,
        NOW - 60,
        readings=FULL,
        gpm=GPM,
        processes=PROCESSES,
        mig_enabled=False,
        xid=XidRecord(True),
        nvlink_rates=NvLinkRates(36_999.0, {link: 1000.0 * link + 999.9 for link in range(18)}),
        clock_samples=(ClockSample(NOW - 1, 0x4),),
    )
    return base._replace(**changes)  # type: ignore[arg-type]


def snapshot(*gpus: Gpu, **changes: object) -> Snapshot:
    present = sum(one.up for one in gpus)
    reading = GpuReading("580.1", "13.580.1", "13.0", gpus, expected=len(gpus), present=present)
    return Snapshot(1, 0.0, NOW, "host", readings=Readings(gpus=reading._replace(**changes)))  # type: ignore[arg-type]


def series(dialect: Dialect, of: Snapshot) -> Series:
    """The served bytes as parsed by Prometheus's client."""
    exposition = Exposition(lambda: of, [dialect])
    body, _ = exposition.metrics(None, openmetrics=False, gzip=False)
    assert exposition.duplicates == {dialect.name: 0}
    assert exposition.failures == {dialect.name: 0}
    return parsed(body.decode())


def values(dialect: Dialect, of: Snapshot, name: str) -> list[float]:
    return [value for (found, _), value in series(dialect, of).items() if found == name]


def labels_of(dialect: Dialect, of: Snapshot, name: str) -> list[dict[str, str]]:
    return [dict(labels) for (found, labels) in series(dialect, of) if found == name]


# -- dcgm

EXPECTED_DCGM = {
    "DEV_SM_CLOCK": 1485,
    "DEV_MEM_CLOCK": 3201,
    "DEV_MEMORY_TEMP": 52,
    "DEV_GPU_TEMP": 63,
    "DEV_POWER_USAGE": 512.5,
    "DEV_TOTAL_ENERGY_CONSUMPTION": 5_474_928,
    "DEV_PCIE_TX_THROUGHPUT": 1.0,
    "DEV_PCIE_RX_THROUGHPUT": 2.0,
    "DEV_PCIE_REPLAY_COUNTER": 3,
    "DEV_GPU_UTIL": 87,
    "DEV_MEM_COPY_UTIL": 29,
    "DEV_ENC_UTIL": 1,
    "DEV_DEC_UTIL": 2,
    "DEV_XID_ERRORS": 0,
    "DEV_FB_FREE": 59 * 1024,
    "DEV_FB_USED": 40 * 1024,
    "DEV_FB_RESERVED": 1024,
    "DEV_ECC_SBE_VOL_TOTAL": 4,
    "DEV_ECC_DBE_VOL_TOTAL": 0,
    "DEV_ECC_SBE_AGG_TOTAL": 6,
    "DEV_ECC_DBE_AGG_TOTAL": 7,
    "DEV_CORRECTABLE_REMAPPED_ROWS": 8,
    "DEV_UNCORRECTABLE_REMAPPED_ROWS": 9,
    "DEV_ROW_REMAP_FAILURE": 0,
    "DEV_POWER_VIOLATION": 3_965_869_216,
    "DEV_THERMAL_VIOLATION": 0,
    "DEV_SYNC_BOOST_VIOLATION": 12,
    "DEV_BOARD_LIMIT_VIOLATION": 13,
    "DEV_LOW_UTIL_VIOLATION": 14,
    "DEV_RELIABILITY_VIOLATION": 15,
    "DEV_RETIRED_SBE": 16,
    "DEV_RETIRED_DBE": 17,
    "DEV_RETIRED_PENDING": 1,
    "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 20,
    "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 21,
    "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 22,
    "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": 23,
    "DEV_NVLINK_BANDWIDTH_TOTAL": 36,
    **{f"DEV_NVLINK_BANDWIDTH_L{link}": link for link in range(18)},
    "DEV_VGPU_LICENSE_STATUS": 0,
    "PROF_GR_ENGINE_ACTIVE": 0.9,
    "PROF_SM_ACTIVE": 0.8,
    "PROF_SM_OCCUPANCY": 0.7,
    "PROF_PIPE_TENSOR_ACTIVE": 0.6,
    "PROF_PIPE_FP64_ACTIVE": 0.5,
    "PROF_PIPE_FP32_ACTIVE": 0.4,
    "PROF_PIPE_FP16_ACTIVE": 0.3,
    "PROF_DRAM_ACTIVE": 0.2,
    "PROF_PCIE_TX_BYTES": 1000,
    "PROF_PCIE_RX_BYTES": 2000,
    "PROF_NVLINK_TX_BYTES": 3000,
    "PROF_NVLINK_RX_BYTES": 4000,
}


def test_dcgm_has_every_name_of_the_default_set_with_its_value() -> None:
    # The parser adds the suffix _total to every counter; DCGM's counters do not have it.
    served = series(DCGM, snapshot(gpu()))
    found = {name.removesuffix("_total"): value for (name, _), value in served.items()}
    counted = {"DCGM_EXP_XID_ERRORS_COUNT": 0, "DCGM_EXP_CLOCK_EVENTS_COUNT": 1, "DCGM_EXP_GPU_HEALTH_STATUS": 10}
    assert found == {f"DCGM_FI_{name}": value for name, value in EXPECTED_DCGM.items()} | counted
    # The state of links between GPUs needs two of them.
    assert {metric.name for metric in DCGM_CATALOGUE} - {"DCGM_EXP_P2P_STATUS"} == found.keys()


def test_dcgm_labels() -> None:
    assert labels_of(DCGM, snapshot(gpu()), "DCGM_FI_DEV_GPU_TEMP") == [
        {
            "gpu": "0",
            "UUID": UUID,
            "pci_bus_id": "00000000:00:00.0",
            "device": "nvidia0",
            "modelName": "NVIDIA H200",
            "Hostname": "host",
            "DCGM_FI_DRIVER_VERSION": "580.1",
        }
    ]


@pytest.mark.parametrize(("choice", "expected"), [("hostname", {"hostname"}), ("both", {"hostname", "Hostname"})])
def test_the_label_of_the_host_is_chosen(choice: str, expected: set[str]) -> None:
    (labels,) = labels_of(dcgm_dialect(DcgmOptions(hostname_label=choice)), snapshot(gpu()), "DCGM_FI_DEV_GPU_TEMP")
    assert {name for name, value in labels.items() if value == "host"} == expected


def mig(gi: int, ci: int, profile: str, used: int, uuid: str) -> MigInstance:
    return MigInstance(
        uuid,
        gi,
        ci,
        profile,
        3,
        1,
        16,
        40 * GIB,
        placement_start=gi,
        placement_size=4,
        memory=MigMemory(40 * GIB, used * MIB, 40 * GIB - used * MIB, 0),
        gpm=GPM._replace(sm_ratio=gi / 10),
    )


SPLIT = gpu(
    readings=FULL._replace(utilization_percent=None),
    mig_enabled=True,
    mig=(
        mig(1, 0, "1c.3g.40gb", 500, "MIG-1"),
        mig(1, 1, "2c.3g.40gb", 500, "MIG-2"),
        mig(2, 0, "3g.40gb", 700, "MIG-3"),
    ),
)


def test_a_split_gpu_has_memory_and_prof_once_per_gpu_instance() -> None:
    split = snapshot(SPLIT)
    assert values(DCGM, split, "DCGM_FI_DEV_FB_USED") == [500, 700]
    assert values(DCGM, split, "DCGM_FI_PROF_SM_ACTIVE") == [0.1, 0.2]
    where = [(one["GPU_I_ID"], one["GPU_I_PROFILE"]) for one in labels_of(DCGM, split, "DCGM_FI_DEV_FB_USED")]
    assert where == [("1", "3g.40gb"), ("2", "3g.40gb")]
    assert {one["UUID"] for one in labels_of(DCGM, split, "DCGM_FI_DEV_FB_USED")} == {UUID}


def test_a_split_gpu_has_power_and_temperature_once() -> None:
    split = snapshot(SPLIT)
    assert values(DCGM, split, "DCGM_FI_DEV_POWER_USAGE") == [512.5]
    assert "GPU_I_ID" not in labels_of(DCGM, split, "DCGM_FI_DEV_POWER_USAGE")[0]
    assert values(DCGM, split, "DCGM_FI_DEV_GPU_UTIL") == []


def test_the_last_xid_stays_and_outlives_the_gpu() -> None:
    lost = gpu(up=False, down_reason="gpu_is_lost", readings=GpuReadings(), xid=XidRecord(True, {79: 2}, 79, NOW))
    found = series(DCGM, snapshot(lost))
    assert {name: value for (name, _), value in found.items()} == {
        "DCGM_FI_DEV_XID_ERRORS": 79,
        "DCGM_EXP_XID_ERRORS_COUNT": 0,
    }, "two came before the window"
    blind = gpu(xid=XidRecord(False))
    assert values(DCGM, snapshot(blind), "DCGM_FI_DEV_XID_ERRORS") == []


# -- node and nvshare


def test_node_names_by_index() -> None:
    other = gpu(identity=identity(OTHER, 1), processes=())
    found = series(NODE, snapshot(gpu(), other))
    assert found[("gpu_utilization_percent", (("gpu_index", "0"),))] == 87
    assert found[("gpu_memory_total_bytes", (("gpu_index", "1"),))] == 100 * GIB
    assert found[("gpu_memory_used_bytes", (("gpu_index", "0"),))] == 41 * GIB, "used + free = total"
    assert found[("gpu_temperature_celsius", (("gpu_index", "0"),))] == 63
    assert found[("gpu_power_draw_watts", (("gpu_index", "0"),))] == 512.5
    assert {k: v for k, v in found.items() if k[0] == "gpu_process_memory_bytes"} == {
        ("gpu_process_memory_bytes", (("gpu_index", "0"), ("pid", "10"))): 3 * GIB,
        ("gpu_process_memory_bytes", (("gpu_index", "0"), ("pid", "12"))): 1 * GIB,
    }


def test_a_process_in_two_instances_is_one_series_with_the_sum() -> None:
    rows = (
        GpuProcess(10, None, "compute", GIB, gpu_instance_id=1),
        GpuProcess(10, None, "compute", GIB, gpu_instance_id=2),
    )
    split = snapshot(SPLIT._replace(processes=rows))
    assert values(NODE, split, "gpu_process_memory_bytes") == [2 * GIB]
    assert values(NVSHARE, split, "nvshare_gpu_process_count") == [1]


def test_nvshare_names() -> None:
    found = series(NVSHARE, snapshot(gpu()))
    labels = (("gpu_index", "0"), ("gpu_uuid", UUID))
    assert found == {
        ("nvshare_nvml_up", ()): 1,
        ("nvshare_gpu_info", (("gpu_index", "0"), ("gpu_name", "NVIDIA H200"), ("gpu_uuid", UUID))): 1,
        ("nvshare_gpu_memory_total_bytes", labels): 100 * GIB,
        ("nvshare_gpu_memory_used_bytes", labels): 41 * GIB,
        ("nvshare_gpu_memory_free_bytes", labels): 59 * GIB,
        ("nvshare_gpu_utilization_ratio", labels): 0.87,
        ("nvshare_gpu_memory_utilization_ratio", labels): 0.29,
        ("nvshare_gpu_process_count", labels): 2,
    }


def test_without_a_driver_nvml_is_down_and_gpu_families_are_absent() -> None:
    empty = Snapshot(1, 0.0, NOW, "host")
    assert series(NVSHARE, empty) == {("nvshare_nvml_up", ()): 0}
    assert series(DCGM, empty) == {}
    assert [name for name, _ in series(NODE, empty) if name.startswith("gpu_")] == []
    assert [name for name, _ in series(GPUCOMMONS, empty) if "gpu_" in name or "nvml" in name] == []
    body, _ = Exposition(lambda: empty, DIALECTS).metrics(None, openmetrics=False, gzip=False)
    assert "# TYPE nvshare_gpu" not in body.decode()
    assert "# TYPE DCGM" not in body.decode()


# -- our own


def test_up_with_its_pci_address_for_every_gpu_ever_seen() -> None:
    lost = gpu(identity=identity(OTHER, 1), up=False, down_reason="gpu_is_lost", readings=GpuReadings())
    found = series(GPUCOMMONS, snapshot(gpu(), lost))
    assert found[("gpucommons_gpu_up", (("gpu", "0"), ("pci_bus_id", "00000000:00:00.0"), ("uuid", UUID)))] == 1
    assert found[("gpucommons_gpu_up", (("gpu", "1"), ("pci_bus_id", "00000000:01:00.0"), ("uuid", OTHER)))] == 0
    assert found[("gpucommons_gpus_expected", ())] == 2
    assert found[("gpucommons_gpus_present", ())] == 1
    assert found[("gpucommons_gpu_health", (("gpu", "1"), ("uuid", OTHER)))] == 3


def test_xids_by_code() -> None:
    troubled = gpu(xid=XidRecord(True, {31: 2, 79: 1}, 79, NOW - 5, {"double_bit_ecc_error": 4}))
    found = series(GPUCOMMONS, snapshot(troubled))
    base = (("gpu", "0"), ("uuid", UUID))
    assert found[("gpucommons_gpu_xid_errors_total", (*base, ("xid", "31")))] == 2
    assert found[("gpucommons_gpu_xid_errors_total", (*base, ("xid", "79")))] == 1
    assert found[("gpucommons_gpu_last_xid", base)] == 79
    assert found[("gpucommons_gpu_last_xid_timestamp_seconds", base)] == NOW - 5
    assert found[("gpucommons_gpu_critical_events_total", (("event", "double_bit_ecc_error"), *base))] == 4
    assert found[("gpucommons_gpu_health_problem", (("gpu", "0"), ("problem", "xid_79"), ("uuid", UUID)))] == 1


def test_every_throttle_reason_is_a_series() -> None:
    found = series(GPUCOMMONS, snapshot(gpu()))
    active = {
        dict(labels)["reason"]: value
        for (name, labels), value in found.items()
        if name == "gpucommons_gpu_throttle_reason_active"
    }
    assert len(active) == 11
    assert {reason for reason, value in active.items() if value} == {"sw_power_cap", "hw_thermal_slowdown"}
    base = (("gpu", "0"), ("uuid", UUID))
    violation = ("gpucommons_gpu_violation_seconds_total", (("cause", "power"), *base))
    assert found[violation] == pytest.approx(3.965869216)


def test_mig_devices_are_reported_and_memory_belongs_to_the_gpu_instance() -> None:
    found = series(GPUCOMMONS, snapshot(SPLIT))
    devices = [dict(labels) for name, labels in found if name == "gpucommons_gpu_mig_device_info"]
    assert [(one["mig_uuid"], one["profile"], one["gpu_instance"], one["compute_instance"]) for one in devices] == [
        ("MIG-1", "1c.3g.40gb", "1", "0"),
        ("MIG-2", "2c.3g.40gb", "1", "1"),
        ("MIG-3", "3g.40gb", "2", "0"),
    ]
    assert (devices[0]["placement_start"], devices[0]["placement_size"]) == ("1", "4")
    used = [
        value
        for (name, labels), value in found.items()
        if name == "gpucommons_gpu_mig_memory_bytes" and ("which", "used") in labels
    ]
    assert used == [500 * MIB, 700 * MIB]


def test_the_cost_of_a_reading_is_reported() -> None:
    taken = snapshot(
        gpu(),
        connections=2,
        lane_moves={LaneMove(UUID, "energy", "slow"): 1},
        slow_calls=(LaneMove(UUID, "energy", "slow"),),
        samples_dropped={(UUID, "future"): 5},
        call_failures={("power", "unknown"): 6},
    )
    found = series(GPUCOMMONS, taken)
    move = (("call", "energy"), ("lane", "slow"), ("uuid", UUID))
    assert found[("gpucommons_nvml_lane_moves_total", move)] == 1
    assert found[("gpucommons_nvml_slow_call", (("call", "energy"), ("uuid", UUID)))] == 1
    assert found[("gpucommons_nvml_samples_dropped_total", (("reason", "future"), ("uuid", UUID)))] == 5
    assert found[("gpucommons_nvml_call_failures_total", (("call", "power"), ("code", "unknown")))] == 6
    assert found[("gpucommons_nvml_connections_total", ())] == 2


def test_utilisation_by_process() -> None:
    found = series(GPUCOMMONS, snapshot(gpu()))
    sm = {
        dict(labels)["pid"]: value
        for (name, labels), value in found.items()
        if name == "gpucommons_gpu_process_utilization_ratio" and ("engine", "sm") in labels
    }
    assert sm == {"10": 0.4, "12": 0.0}, "an idle process is a measured 0, an unknown one is absent"


# -- in any case

maybe_int = st.none() | st.integers(0, 2**40)
any_readings = st.builds(GpuReadings, *[maybe_int for _ in GpuReadings._fields])
any_gpm = st.none() | st.builds(GpmReading, *[st.none() | st.floats(0, 1) for _ in GpmReading._fields])


@given(any_readings, any_gpm, st.sampled_from([None, (), PROCESSES]), st.booleans())
@costly(10)
def test_a_reading_that_is_missing_is_absent_and_one_that_is_there_is_served(
    readings: GpuReadings, gpm: GpmReading | None, processes: tuple[GpuProcess, ...] | None, up: bool
) -> None:
    """No combination of what is known fails, doubles a series or makes a number of nothing."""
    taken = snapshot(gpu(readings=readings if up else GpuReadings(), gpm=gpm, processes=processes, up=up))
    for dialect in (DCGM, NODE, NVSHARE, GPUCOMMONS):
        found = series(dialect, taken)
        assert all(value is not None for value in found.values())
    for name, field in (("DCGM_FI_DEV_POWER_USAGE", "power_watts"), ("DCGM_FI_DEV_GPU_UTIL", "utilization_percent")):
        there = up and getattr(readings, field) is not None
        assert bool(values(DCGM, taken, name)) == there


@given(st.text())
def test_hostile_names_are_labels_like_others(name: str) -> None:
    hostile = gpu(identity=replace(identity(), name=name))
    for dialect in (DCGM, NVSHARE, GPUCOMMONS):
        assert series(dialect, snapshot(hostile))
