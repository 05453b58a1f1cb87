"""NVIDIA DCGM GPU Metrics: the hardware in detail, from dcgm-exporter's metrics."""

from dashboards.board import Board, Section, Variable
from dashboards.panels import HALF, QUARTER, THIRD, Query, Steps, lines, number, rows

NODE = '{node=~"$node",gpu=~"$gpu"}'
LIMIT = '{node=~"$node",gpu=~"$gpu",limit="enforced"}'
BUSY = '{node=~"$node",gpu=~"$gpu",reason!="gpu_idle"}'
GPU = "{{node}} GPU {{gpu}}"
INSTANCE = "{{node}} GPU {{gpu}} MIG {{GPU_I_ID}} ({{GPU_I_PROFILE}})"
BY_GPU = "by (node, gpu, modelName)"
VIOLATIONS = (
    ("POWER", "power"),
    ("THERMAL", "heat"),
    ("BOARD_LIMIT", "board limit"),
    ("RELIABILITY", "reliability"),
    ("SYNC_BOOST", "sync boost"),
)
LINK_ERRORS = (("REPLAY", "retries"), ("RECOVERY", "recoveries"), ("CRC_FLIT", "flit CRC"), ("CRC_DATA", "data CRC"))


def once(metric: str) -> str:
    """One series per GPU, however many pods and jobs it has."""
    return f"max by (node, gpu) ({metric}{NODE})"


BOARD = Board(
    uid="nvidia-dcgm",
    title="NVIDIA DCGM GPU Metrics",
    about="Utilization, memory, power, clocks, links and errors of each GPU and MIG instance.",
    variables=(Variable("gpu", 'label_values(DCGM_FI_DEV_GPU_TEMP{node=~"$node"}, gpu)', many=True),),
    sections=(
        Section(
            "GPU overview",
            (
                number(
                    "Utilization",
                    f"avg({once('DCGM_FI_DEV_GPU_UTIL')})",
                    "percent",
                    "Mean of the selected GPUs.",
                    width=QUARTER,
                ),
                number(
                    "Memory copy",
                    f"avg({once('DCGM_FI_DEV_MEM_COPY_UTIL')})",
                    "percent",
                    "Share of time in which memory was read or written.",
                    width=QUARTER,
                ),
                number(
                    "Memory used",
                    f"sum(gpucommons:gpu_memory_used:bytes{NODE})",
                    "bytes",
                    "Used memory of the selected GPUs.",
                    width=QUARTER,
                ),
                number(
                    "Temperature",
                    f"max({once('DCGM_FI_DEV_GPU_TEMP')})",
                    "celsius",
                    "Highest temperature of the selected GPUs.",
                    steps=Steps(85, 90),
                    width=QUARTER,
                ),
                lines(
                    "Utilization",
                    (Query(once("DCGM_FI_DEV_GPU_UTIL"), GPU),),
                    "percent",
                    "Share of time in which a kernel ran.",
                    maximum=100,
                    width=THIRD,
                ),
                lines(
                    "Memory",
                    (Query(f"gpucommons:gpu_memory_used:bytes{NODE}", GPU),),
                    "bytes",
                    "Used framebuffer memory.",
                    width=THIRD,
                ),
                lines(
                    "Temperature",
                    (Query(once("DCGM_FI_DEV_GPU_TEMP"), GPU), Query(once("DCGM_FI_DEV_MEMORY_TEMP"), f"{GPU} memory")),
                    "celsius",
                    "Temperature of the GPU and of its memory.",
                    steps=Steps(85, 90),
                    width=THIRD,
                ),
            ),
        ),
        Section(
            "Power and energy",
            (
                lines(
                    "Power draw",
                    (
                        Query(once("DCGM_FI_DEV_POWER_USAGE"), GPU),
                        Query(
                            f"max by (node, gpu) (gpucommons_gpu_power_limit_watts{LIMIT})",
                            f"{GPU} limit",
                        ),
                    ),
                    "watt",
                    "Power draw and the enforced limit.",
                    width=HALF,
                ),
                number(
                    "Total energy",
                    f"sum({once('DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION')}) / 3.6e9",
                    "kwatth",
                    "Energy since the driver was loaded.",
                    decimals=1,
                    width=QUARTER,
                ),
                number(
                    "Energy in time range",
                    f"sum(max by (node, gpu) (increase(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{NODE}[$__range]))) / 3.6e9",
                    "kwatth",
                    "Energy in the selected time range.",
                    decimals=3,
                    width=QUARTER,
                ),
            ),
        ),
        Section(
            "Clocks",
            (
                lines(
                    "SM clock",
                    (Query(f"{once('DCGM_FI_DEV_SM_CLOCK')} * 1e6", GPU),),
                    "hertz",
                    "Clock of the multiprocessors.",
                ),
                lines(
                    "Memory clock", (Query(f"{once('DCGM_FI_DEV_MEM_CLOCK')} * 1e6", GPU),), "hertz", "Of the memory."
                ),
                lines(
                    "Throttle reasons",
                    (
                        Query(
                            f"sum by (node, gpu, reason) (gpucommons_gpu_throttle_reason_active{BUSY} == 1)",
                            f"{GPU} {{{{reason}}}}",
                        ),
                    ),
                    "short",
                    "Reasons for reduced clocks.",
                    bars=True,
                ),
                lines(
                    "Throttled time",
                    tuple(
                        Query(
                            f"max by (node, gpu) (rate(DCGM_FI_DEV_{cause}_VIOLATION{NODE}[5m])) / 1e9", f"{GPU} {why}"
                        )
                        for cause, why in VIOLATIONS
                    ),
                    "percentunit",
                    "Share of the last five minutes with reduced clocks, by cause.",
                    maximum=1,
                ),
            ),
        ),
        Section(
            "PCIe and NVLink",
            (
                lines(
                    "PCIe sent",
                    (Query(f"{once('DCGM_FI_DEV_PCIE_TX_THROUGHPUT')} * 1000", GPU),),
                    "Bps",
                    "Data sent by the GPU.",
                ),
                lines(
                    "PCIe received",
                    (Query(f"{once('DCGM_FI_DEV_PCIE_RX_THROUGHPUT')} * 1000", GPU),),
                    "Bps",
                    "Data received by the GPU.",
                ),
                lines(
                    "NVLink",
                    (
                        Query(once("DCGM_FI_PROF_NVLINK_TX_BYTES"), f"{GPU} sent"),
                        Query(once("DCGM_FI_PROF_NVLINK_RX_BYTES"), f"{GPU} received"),
                    ),
                    "Bps",
                    "All links of a GPU, measured by GPM (Hopper and newer).",
                    width=THIRD,
                ),
                lines(
                    "NVLink throughput",
                    (Query(f"{once('DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL')} * 1024000", GPU),),
                    "Bps",
                    "All links of a GPU, sent and received, from the links' counters.",
                    width=THIRD,
                ),
                lines(
                    "NVLink errors",
                    tuple(
                        Query(
                            f"max by (node, gpu) (increase(DCGM_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL{NODE}[5m]))",
                            f"{GPU} {what}",
                        )
                        for kind, what in LINK_ERRORS
                    ),
                    "short",
                    "Errors on all links of a GPU in the last 5 minutes. Retries slow a link, recoveries interrupt it.",
                    width=THIRD,
                ),
            ),
        ),
        Section(
            "Errors",
            (
                lines(
                    "ECC, volatile",
                    (
                        Query(once("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"), f"{GPU} single-bit"),
                        Query(once("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"), f"{GPU} double-bit"),
                    ),
                    "short",
                    "Errors since the driver was loaded. Double-bit errors are not corrected.",
                    width=THIRD,
                ),
                lines(
                    "XID errors",
                    (Query(once("DCGM_FI_DEV_XID_ERRORS"), f"{GPU} last code"),),
                    "short",
                    "Last code of each GPU; 0 if there was none.",
                    width=THIRD,
                ),
                lines(
                    "XIDs by code",
                    (
                        Query(
                            f"sum by (node, gpu, xid) (gpucommons_gpu_xid_errors_total{NODE})", f"{GPU} XID {{{{xid}}}}"
                        ),
                    ),
                    "short",
                    "Number of errors per code since the agent started.",
                    width=THIRD,
                ),
                lines(
                    "Recent XIDs",
                    (
                        Query(
                            f"max by (node, gpu, xid, window_size_in_ms) (DCGM_EXP_XID_ERRORS_COUNT{NODE})",
                            f"{GPU} XID {{{{xid}}}}",
                        ),
                    ),
                    "short",
                    "Errors in the agent's window, 5 minutes by default.",
                    width=THIRD,
                ),
                lines(
                    "Remapped rows",
                    (
                        Query(once("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS"), f"{GPU} correctable"),
                        Query(once("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"), f"{GPU} uncorrectable"),
                    ),
                    "short",
                    "Replaced rows of memory.",
                    width=THIRD,
                ),
                lines(
                    "PCIe replays",
                    (Query(once("DCGM_FI_DEV_PCIE_REPLAY_COUNTER"), GPU),),
                    "short",
                    "PCIe retries.",
                    width=THIRD,
                ),
            ),
        ),
        Section(
            "Per GPU",
            (
                rows(
                    "Each GPU now",
                    {
                        "node": "Node",
                        "gpu": "GPU",
                        "modelName": "Model",
                        "Value #A": "Utilization",
                        "Value #B": "Memory used",
                        "Value #C": "Memory free",
                        "Value #D": "Temperature",
                        "Value #E": "Power",
                        "Value #F": "SM clock",
                        "Value #G": "Memory clock",
                        "Value #H": "Last XID",
                    },
                    (
                        Query(f"max {BY_GPU} (DCGM_FI_DEV_GPU_UTIL{NODE})"),
                        Query(
                            f"sum {BY_GPU} (max by (node, gpu, modelName, GPU_I_ID) (DCGM_FI_DEV_FB_USED{NODE})) * 2^20"
                        ),
                        Query(
                            f"sum {BY_GPU} (max by (node, gpu, modelName, GPU_I_ID) (DCGM_FI_DEV_FB_FREE{NODE})) * 2^20"
                        ),
                        Query(f"max {BY_GPU} (DCGM_FI_DEV_GPU_TEMP{NODE})"),
                        Query(f"max {BY_GPU} (DCGM_FI_DEV_POWER_USAGE{NODE})"),
                        Query(f"max {BY_GPU} (DCGM_FI_DEV_SM_CLOCK{NODE}) * 1e6"),
                        Query(f"max {BY_GPU} (DCGM_FI_DEV_MEM_CLOCK{NODE}) * 1e6"),
                        Query(f"max {BY_GPU} (DCGM_FI_DEV_XID_ERRORS{NODE})"),
                    ),
                    "Current values of each GPU.",
                    units={
                        "Utilization": "percent",
                        "Memory used": "bytes",
                        "Memory free": "bytes",
                        "Temperature": "celsius",
                        "Power": "watt",
                        "SM clock": "hertz",
                        "Memory clock": "hertz",
                    },
                ),
            ),
        ),
        Section(
            "Activity in detail",
            (
                lines(
                    "Engine and SM",
                    (
                        Query(once("DCGM_FI_PROF_GR_ENGINE_ACTIVE"), f"{GPU} graphics"),
                        Query(once("DCGM_FI_PROF_SM_ACTIVE"), f"{GPU} SM"),
                        Query(once("DCGM_FI_PROF_SM_OCCUPANCY"), f"{GPU} occupancy"),
                    ),
                    "percentunit",
                    "Measured by GPM (Hopper and newer).",
                    maximum=1,
                    width=THIRD,
                ),
                lines(
                    "Pipes",
                    (
                        Query(once("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"), f"{GPU} tensor"),
                        Query(once("DCGM_FI_PROF_PIPE_FP32_ACTIVE"), f"{GPU} FP32"),
                        Query(once("DCGM_FI_PROF_PIPE_FP16_ACTIVE"), f"{GPU} FP16"),
                        Query(once("DCGM_FI_PROF_PIPE_FP64_ACTIVE"), f"{GPU} FP64"),
                    ),
                    "percentunit",
                    "Activity of each arithmetic pipe.",
                    maximum=1,
                    width=THIRD,
                ),
                lines(
                    "Memory interface",
                    (Query(once("DCGM_FI_PROF_DRAM_ACTIVE"), GPU),),
                    "percentunit",
                    "Share of cycles in which memory was read or written.",
                    maximum=1,
                    width=THIRD,
                ),
            ),
        ),
        Section(
            "MIG",
            (
                lines(
                    "Activity per instance",
                    (Query(f"gpucommons:mig_utilization:ratio{NODE}", INSTANCE),),
                    "percentunit",
                    "Activity relative to the instance's share of the GPU.",
                    maximum=1,
                ),
                lines(
                    "Memory per instance",
                    (Query(f"gpucommons:mig_memory_used:ratio{NODE}", INSTANCE),),
                    "percentunit",
                    "Used share of the instance's memory.",
                    maximum=1,
                    steps=Steps(0.85, 0.95),
                ),
            ),
        ),
    ),
)
