"""The settings of leases. Values only."""

from dataclasses import dataclass

from gpucommons.config.option import option


@dataclass(frozen=True, slots=True)
class LeasesSettings:
    """The queue of `gpucommons run`."""

    enabled: str = option(
        "auto",
        "give leases. auto: unless Slurm or Kubernetes manages the GPUs of this node",
        choices=("auto", "true", "false"),
    )
    socket: str = option(
        "",
        "socket for gpucommons run; empty: leases.sock in /run/gpucommons, or in gpucommons below $XDG_RUNTIME_DIR "
        "for an agent without root",
    )
    admin_group: str = option("", "group that may cancel leases and reservations of all users, like root; empty: none")
    pass_limit_s: float = option(
        3600.0, "seconds for which later requests may take GPUs that a waiting request could use", minimum=0
    )
    share_limit: int = option(4, "leases that may share a GPU, if all of them accept to share", minimum=1)
    no_show_after_s: float = option(
        1800.0, "seconds after which a reservation that is not used is released", minimum=60
    )
    reserve_ahead_d: float = option(14.0, "days from now at which a reservation may start at the latest", minimum=0)
    enforce: str = option(
        "report",
        "what is done about processes without a lease on an exclusively leased GPU. report: they are shown; "
        "pause: they are paused until the lease ends, also where scheduler.share_programs is off",
        choices=("report", "pause"),
    )
    mps: str = option(
        "off",
        "run commands that share a GPU (run --share) under NVIDIA's MPS, which enforces --memory and --sm. per_user: "
        "with a daemon for each user; all_users: with one daemon for all, which ends the commands of all if one of "
        "them makes a fatal error on the GPU. Needs an agent that runs as root",
        choices=("off", "per_user", "all_users"),
    )


@dataclass(frozen=True, slots=True)
class LeaseQuotaSettings:
    """One line for each rule, such as students = { group = "students", gpus = 4 } or all = { user = "*", gpus = 2 }."""

    user: str = option("", "shell pattern of user names; the quota is for each of these users")
    group: str = option("", "group whose members have the quota together, in place of user")
    gpus: float = option(
        0.0, "GPUs that may be leased at once; a MIG device counts by its slices; 0: no limit", minimum=0
    )
    hours: float = option(0.0, "GPU-hours in the last 30 days, from the accounts; 0: no limit", minimum=0)
    sm_percent: int = option(
        0,
        "percent of a GPU's threads that each command may use under MPS (leases.mps), whatever the number of commands; "
        "0: no limit",
        minimum=0,
        maximum=100,
    )
