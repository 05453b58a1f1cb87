"""NVIDIA DCGM GPU Metrics: the hardware in detail, in the names that dashboards made for dcgm-exporter use."""

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
    """One series per GPU, whichever pods and jobs it is served for."""
    return f"max by (node, gpu) ({metric}{NODE})"


BOARD = Board(
    uid="nvidia-dcgm",
    title="NVIDIA DCGM GPU Metrics",
    about="Utilisation, memory, power, clocks, links and errors of each GPU and MIG instance.",
    variables=(Variable("gpu", 'label_values(DCGM_FI_DEV_GPU_TEMP{node=~"$node"}, gpu)', many=True),),
    sections=(
        Section(
            "GPU overview",
            (
                number(
                    "Utilisation",
                    f"avg({once('DCGM_FI_DEV_GPU_UTIL')})",
                    "percent",
                    "Mean of the GPUs shown.",
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
                    "Of the GPUs shown.",
                    width=QUARTER,
                ),
                number(
                    "Temperature",
                    f"max({once('DCGM_FI_DEV_GPU_TEMP')})",
                    "celsius",
                    "The hottest of the GPUs shown.",
                    steps=Steps(85, 90),
                    width=QUARTER,
                ),
                lines(
                    "Utilisation",
                    (Query(once("DCGM_FI_DEV_GPU_UTIL"), GPU),),
                    "percent",
                    "Share of time in which a kernel ran.",
                    most=100,
                    width=THIRD,
                ),
                lines(
                    "Memory",
                    (Query(f"gpucommons:gpu_memory_used:bytes{NODE}", GPU),),
                    "bytes",
                    "Used framebuffer.",
                    width=THIRD,
                ),
                lines(
                    "Temperature",
                    (Query(once("DCGM_FI_DEV_GPU_TEMP"), GPU), Query(once("DCGM_FI_DEV_MEMORY_TEMP"), f"{GPU} memory")),
                    "celsius",
                    "Core and memory.",
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
                    "Against the limit that is in force.",
                    width=HALF,
                ),
                number(
                    "Total energy",
                    f"sum({once('DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION')}) / 3.6e9",
                    "kwatth",
                    "Since the driver was loaded.",
                    decimals=1,
                    width=QUARTER,
                ),
                number(
                    "Energy in view",
                    f"sum(max by (node, gpu) (increase(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{NODE}[$__range]))) / 3.6e9",
                    "kwatth",
                    "In the time range that is shown.",
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
                    "Of the multiprocessors.",
                ),
                lines(
                    "Memory clock", (Query(f"{once('DCGM_FI_DEV_MEM_CLOCK')} * 1e6", GPU),), "hertz", "Of the memory."
                ),
                lines(
                    "Held back by",
                    (
                        Query(
                            f"sum by (node, gpu, reason) (gpucommons_gpu_throttle_reason_active{BUSY} == 1)",
                            f"{GPU} {{{{reason}}}}",
                        ),
                    ),
                    "short",
                    "Why clocks are lower than they could be.",
                    bars=True,
                ),
                lines(
                    "Share of time held back",
                    tuple(
                        Query(
                            f"max by (node, gpu) (rate(DCGM_FI_DEV_{cause}_VIOLATION{NODE}[5m])) / 1e9", f"{GPU} {why}"
                        )
                        for cause, why in VIOLATIONS
                    ),
                    "percentunit",
                    "Clocks that were held down, over the last five minutes, by cause.",
                    most=1,
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
                    "From the GPU.",
                ),
                lines(
                    "PCIe received",
                    (Query(f"{once('DCGM_FI_DEV_PCIE_RX_THROUGHPUT')} * 1000", GPU),),
                    "Bps",
                    "By the GPU.",
                ),
                lines(
                    "NVLink",
                    (
                        Query(once("DCGM_FI_PROF_NVLINK_TX_BYTES"), f"{GPU} sent"),
                        Query(once("DCGM_FI_PROF_NVLINK_RX_BYTES"), f"{GPU} received"),
                    ),
                    "Bps",
                    "All links of a GPU, as GPM measures it: Hopper and newer.",
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
                    "In the last five minutes, on all links of a GPU. Retries slow a link; a recovery interrupts it.",
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
                    "Since the driver was loaded. Double-bit errors are not corrected.",
                    width=THIRD,
                ),
                lines(
                    "XID errors",
                    (Query(once("DCGM_FI_DEV_XID_ERRORS"), f"{GPU} last code"),),
                    "short",
                    "The last code of each GPU; 0 if there was none.",
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
                    "How often each code came since the agent started.",
                    width=THIRD,
                ),
                lines(
                    "XIDs of the last minutes",
                    (
                        Query(
                            f"max by (node, gpu, xid, window_size_in_ms) (DCGM_EXP_XID_ERRORS_COUNT{NODE})",
                            f"{GPU} XID {{{{xid}}}}",
                        ),
                    ),
                    "short",
                    "In the window that the agent counts in, five minutes unless it is set otherwise.",
                    width=THIRD,
                ),
                lines(
                    "Remapped rows",
                    (
                        Query(once("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS"), f"{GPU} correctable"),
                        Query(once("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"), f"{GPU} uncorrectable"),
                    ),
                    "short",
                    "Rows of memory that were replaced.",
                    width=THIRD,
                ),
                lines(
                    "PCIe replays",
                    (Query(once("DCGM_FI_DEV_PCIE_REPLAY_COUNTER"), GPU),),
                    "short",
                    "Retries on the bus.",
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
                        "Value #A": "Utilisation",
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
                    "All of it side by side.",
                    units={
                        "Utilisation": "percent",
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
                    "From GPM: Hopper and newer.",
                    most=1,
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
                    "Which arithmetic the time went to.",
                    most=1,
                    width=THIRD,
                ),
                lines(
                    "Memory interface",
                    (Query(once("DCGM_FI_PROF_DRAM_ACTIVE"), GPU),),
                    "percentunit",
                    "Share of cycles in which memory was moved.",
                    most=1,
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
                    "Of the instance's own share of the GPU.",
                    most=1,
                ),
                lines(
                    "Memory per instance",
                    (Query(f"gpucommons:mig_memory_used:ratio{NODE}", INSTANCE),),
                    "percentunit",
                    "Of the instance's own memory.",
                    most=1,
                    steps=Steps(0.85, 0.95),
                ),
            ),
        ),
    ),
)
