"""The settings of turns and parking. Values only."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpucommons.base.address import parse_address_or_port
from gpucommons.base.text import parse_gpu_memory
from gpucommons.config.option import nvshare_aliases, option

# nvshare and XPUShare read and log this variable, and do not use it.
MAX_RUNTIME_VARIABLES = nvshare_aliases("MAX_RUNTIME_SEC")
_LEAST_MAX_RUNTIME_S = 10


def max_runtime_lines(environment: Mapping[str, str]) -> Iterator[str]:
    """A line for the log for each of the variables that is set, with the value as the originals read it."""
    for name in MAX_RUNTIME_VARIABLES:
        if name in environment:
            # As C's atoi reads it: the digits at the start, else 0.
            match = re.match(r"\s*([+-]?[0-9]{1,9})", environment[name], re.ASCII)
            seconds = max(int(match[1]) if match else 0, _LEAST_MAX_RUNTIME_S)
            yield (
                f"{name}: Max runtime per task: {seconds} seconds; without effect, as in the original: "
                "scheduler.turn_quantum_s and scheduler.switch_time_fixed_s set the length of a turn"
            )


def check_class(text: str) -> None:
    if text not in ("batch", "latency", "background"):
        raise ValueError(f"unknown class {text!r}: use batch, latency or background")


# parking.arrival_room: newcomers never wait.
OFF: Final = "off"


def parse_room(text: str) -> tuple[int | None, float | None]:
    """Bytes, or a ratio of the GPU's memory; both None: off. Raises ValueError."""
    if text == OFF:
        return None, None
    if text.endswith("%"):
        percent = float(text[:-1])
        if not 0 < percent <= 100:
            raise ValueError(f"{text!r} is not from 1% to 100%")
        return None, percent / 100
    return parse_gpu_memory(text), None


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Turns for plain programs and for clients of nvshare and XPUShare. nvshare's variables keep their meaning."""

    enabled: bool = option(False, "run the scheduler for the clients of nvshare and XPUShare")
    socket: str = option("/var/run/nvshare/scheduler.sock", "socket for libnvshare.so and nvsharectl")
    xpushare_socket: str = option(
        "/var/run/xpushare/scheduler.sock",
        "second socket of the same scheduler, for libxpushare.so and xpusharectl; empty: none; "
        "a warning is logged if the agent may not create it",
    )
    admin_group: str = option("", "group that may switch the scheduler and set limits, like root; empty: none")
    max_connections_per_uid: int = option(
        512, "connections that one user may have at once; root outside of containers has no limit", minimum=1
    )
    max_connections_per_container: int = option(
        256, "connections that the programs of one container may have at once", minimum=1
    )
    debug: bool = option(False, "log every client that connects and disconnects", aliases=nvshare_aliases("DEBUG"))
    mode: str = option(
        "auto",
        "serial: one client at a time; concurrent: together if their memory fits; auto: by measured demand",
        choices=("auto", "serial", "concurrent"),
        aliases=nvshare_aliases("SCHEDULING_MODE"),
    )
    turn_gain_percent: float = option(
        5.0,
        "mode auto: gain in percent, in total progress, from which on clients take turns; below it they run together",
        minimum=0,
        maximum=100,
    )
    turn_quantum_s: float = option(0.25, "mode auto: seconds of a turn if no memory has to be swapped", minimum=0.05)
    fair_between: str = option(
        "owners",
        "owners: all clients of one user or container together get what one client of another gets; "
        "clients: every client gets the same",
        choices=("owners", "clients"),
    )
    share_programs: str = option(
        "off",
        "whose plain programs take turns, paused and resumed by the driver: none (off), those of the agent's own user "
        "(own), or all; needs mode auto",
        choices=("off", "own", "all"),
    )
    pause: str = option(
        "driver",
        "how plain programs are paused: by the driver, from r570 on; freeze: by the cgroup freezer or SIGSTOP, "
        "which also stops their CPU work, for older drivers; a pauser that runs as a service has --backend instead",
        choices=("driver", "freeze"),
    )
    max_pause_s: float = option(
        10.0,
        "longest time in seconds for which a plain program is paused; a pauser that runs as a service also has a limit "
        "of its own, --max-pause-s",
        minimum=0.1,
        maximum=3600,
    )
    pauser_socket: str = option(
        "",
        "socket of a pauser that runs as a service; empty: /run/gpucommons-pauser/pauser.sock if the agent is not root "
        "and share_programs is all, or off with leases.enforce = pause; else the agent starts a pauser of its own",
    )
    background_percent: float = option(
        2.0,
        "percent of the time in which programs of class background run at least, while programs of other classes use "
        "the GPU: enough that they do not time out",
        minimum=1,
        maximum=50,
    )
    max_bypass_s: float = option(0.0, "seconds after which no client passes one that waits; 0: no limit", minimum=0)
    switch_time_mode: str = option(
        "auto",
        "length of a turn: by the memory that a switch moves (auto), or fixed",
        choices=("auto", "fixed"),
        aliases=nvshare_aliases("SWITCH_TIME_MODE"),
    )
    switch_time_fixed_s: float = option(
        60.0,
        "seconds of a turn with switch_time_mode = fixed",
        minimum=0.1,
        aliases=nvshare_aliases("SWITCH_TIME_FIXED"),
    )
    switch_time_multiplier: float = option(
        5.0,
        "seconds of a turn per GiB with switch_time_mode = auto",
        minimum=0,
        aliases=nvshare_aliases("SWITCH_TIME_MULTIPLIER"),
    )
    memory_reserve_percent: float = option(
        10.0,
        "percent of a GPU's memory that is never given to clients",
        minimum=0,
        maximum=90,
        aliases=nvshare_aliases("MEMORY_RESERVE_PERCENT"),
    )
    default_gpu_memory_gb: float = option(
        16.0,
        "memory of a GPU in GiB if NVML does not report it",
        minimum=0.001,
        aliases=nvshare_aliases("DEFAULT_GPU_MEMORY_GB"),
    )
    quota_sample_interval_ms: float = option(
        50.0,
        "milliseconds between two checks of a core quota",
        minimum=1,
        aliases=nvshare_aliases("QUOTA_SAMPLE_INTERVAL_MS"),
    )
    compute_window_ms: float = option(
        2000.0, "window of a core quota in milliseconds", minimum=100, aliases=nvshare_aliases("COMPUTE_WINDOW_MS")
    )
    quota_carryover_percent: float = option(
        25.0,
        "percent of an unused window that a client may use later",
        minimum=0,
        maximum=100,
        aliases=nvshare_aliases("QUOTA_CARRYOVER_PERCENT"),
    )
    drop_tail_billing_percent: float = option(
        100.0,
        "percent of the time between DROP_LOCK and the release that is billed; nvshare bills 70",
        minimum=0,
        maximum=100,
        aliases=nvshare_aliases("DROP_TAIL_BILLING_PERCENT"),
    )
    work_conserving: bool = option(False, "let a client exceed its core quota while no other client waits")
    revoke_after_s: float = option(
        30.0, "seconds after which a client that ignores DROP_LOCK loses its turn", minimum=1
    )
    fence: str = option(
        "second",
        "when the connection of a client that lost its turn this way is closed: "
        "never, after the second time, or the first time",
        choices=("none", "second", "disconnect"),
    )
    metrics_enable: bool = option(
        False, "open the nvshare drop-in listener on metrics_addr", aliases=("NVSHARE_METRICS_ENABLE",)
    )
    metrics_addr: str = option(
        "0.0.0.0:9402",
        "HOST:PORT, or a port, of the nvshare drop-in listener",
        check=parse_address_or_port,
        aliases=("NVSHARE_METRICS_ADDR",),
    )
    xpushare_metrics_enable: bool = option(
        False, "open the xpushare drop-in listener on xpushare_metrics_addr", aliases=("XPUSHARE_METRICS_ENABLE",)
    )
    xpushare_metrics_addr: str = option(
        "0.0.0.0:9402",
        "HOST:PORT, or a port, of the xpushare drop-in listener; different from metrics_addr if both are open",
        check=parse_address_or_port,
        aliases=("XPUSHARE_METRICS_ADDR",),
    )
    metrics_nvml_interval_ms: float = option(
        1000.0,
        "least milliseconds between two readings of the GPUs while the scheduler is enabled; "
        "sampling.interval_s applies where it is longer, and demand is not measured above 6000",
        minimum=100,
        aliases=nvshare_aliases("METRICS_NVML_INTERVAL_MS"),
    )
    metrics_debug_labels: bool = option(
        True,
        "label every series with client_id and host_pid; false: one series for all clients of a pod on a GPU",
        aliases=nvshare_aliases("METRICS_DEBUG_LABELS"),
    )
    metrics_stale_ttl_s: float = option(
        0.0,
        "seconds for which the series of a disconnected client are kept",
        minimum=0,
        aliases=nvshare_aliases("METRICS_STALE_TTL_SEC"),
    )

    @property
    def shares_programs(self) -> bool:
        return self.share_programs != "off"

    @property
    def is_used(self) -> bool:
        """Whether the scheduler runs: for the clients of nvshare, for plain programs, or both."""
        return self.enabled or self.shares_programs


@dataclass(frozen=True, slots=True)
class SharingQuotaSettings:
    """One line for each rule, such as students = { namespace = "course-*", memory = "8Gi", core = 25 }.

    All patterns of a rule must match. Rules with user, group, container, job, unit, command or share are for programs
    that share a GPU without a library (scheduler.share_programs); clients of nvshare do not match them.
    """

    pod: str = option("*", "shell pattern of the pod's name")
    namespace: str = option("*", "shell pattern of the pod's namespace")
    uid: str = option("*", "shell pattern of the numeric user id")
    user: str = option("*", "shell pattern of the user's name")
    group: str = option("*", "shell pattern of the name of one of the user's groups")
    container: str = option("*", "shell pattern of the container's name or id")
    job: str = option("*", "shell pattern of the Slurm job's id")
    unit: str = option("*", "shell pattern of the systemd unit's name, such as ollama.service")
    command: str = option(
        "*", "shell pattern of the command: its short name (train.py) or its whole line; programs choose it themselves"
    )
    memory: str = option("", "memory that each matching client may use, such as 8Gi; empty: no limit")
    core: int = option(
        0, "percent of the GPU's time that each matching client may use; 0: no limit", minimum=0, maximum=100
    )
    class_: str = option(
        "",
        "class of matching programs: batch (default), latency (never paused, others are held back while it works) or "
        "background (runs while no other uses the GPU)",
        check=check_class,
    )
    share: bool = option(True, "false leaves matching programs alone: they take no turns and are never paused")
    sleep_url: str = option(
        "", "address that is sent a POST before a matching program is parked, such as vLLM's /sleep?level=1"
    )
    wake_url: str = option(
        "", "address that is sent a POST when its memory is back, such as vLLM's /wake_up; with sleep_url"
    )


@dataclass(frozen=True, slots=True)
class ParkingSettings:
    """The GPU memory of idle programs goes to host memory. For the programs of scheduler.share_programs."""

    idle_after_s: float = option(
        0.0,
        "seconds after which a program that uses neither the GPU nor the CPU is parked when its room is needed; "
        "0: programs are parked only by gpucommons park",
        minimum=0,
    )
    eager: bool = option(False, "park idle programs also while their room is not needed")
    oversubscribe: bool = option(
        False,
        "let programs that do not fit into a GPU's memory together take long turns: working programs are parked for "
        "those that wait for room, so that moving takes at most a tenth of the time",
    )
    host_reserve_percent: float = option(
        10.0, "percent of the host's memory that parking leaves free, at least 4 GiB", minimum=0, maximum=100
    )
    min_residence_s: float = option(
        120.0, "seconds for which a program that was brought back is not parked again on its own", minimum=0
    )
    arrival_room: str = option(
        "25%",
        "memory that a program finds free when it begins on a GPU: if less is free, it waits until idle programs are "
        "parked; a percentage of the GPU, an amount such as 40Gi, or off",
    )
    arrival_wait_s: float = option(
        60.0, "seconds that a program which begins waits for room at most; then it goes on as it is", minimum=0
    )
    arrival_idle_after_s: float = option(
        120.0,
        "seconds after which a program that uses neither the GPU nor the CPU makes room for one that begins",
        minimum=1,
    )
    arrival_budget_s: float = option(
        300.0,
        "seconds of an hour for which programs that made room for new ones of another owner may wait to come back: "
        "then no more is parked for programs of that owner, nor of an owner whose programs have waited for so long",
        minimum=1,
    )
    settle_s: float = option(
        30.0,
        "seconds after the start of a program that waited for room in which no parked program comes back to its GPU, "
        "unless its user uses it",
        minimum=0,
    )
    device_files: str = option(
        "/dev", "directory of the GPUs' device files: another one in a container that has the host's elsewhere"
    )
