"""The lines of slurm.conf and gres.conf for a node with gpucommons, and the hook scripts, each explained; Prometheus'
targets. Pure.

Slurm takes the path of a hook and no arguments, so each hook is a script of a few lines. A script ends with status 0
even if gpucommons was removed: a prolog that fails drains the node.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class NodePlan:
    """`gpu_files` are the device files of the node's GPUs. `shards` is how many each GPU has; 0: whole GPUs only.

    With `day_night`, each GPU is listed twice, as type day and as type night; then `cores`, the cores of the node, are
    divided among the GPUs. `scripts` is the directory of the hook scripts; `hooks` and `command` start the hooks and
    gpucommons. `mps_memory_mib` is the memory of a GPU where jobs with shards run under MPS; 0: they do not.
    `environment` is for the scripts that call Slurm's programs: its daemons start them without PATH and SLURM_CONF.
    """

    node: str
    gpu_files: Sequence[str]
    gpu_type: str
    shards: int
    day_night: bool
    cores: int
    scripts: str
    hooks: str
    command: str
    mps_memory_mib: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def shard_mib(self) -> int:
        """The memory that goes with one shard under MPS; 0: no limit."""
        return self.mps_memory_mib // self.shards if self.shards else 0

    @property
    def cores_per_gpu(self) -> int:
        return max(1, self.cores // len(self.gpu_files))


def files(plan: NodePlan) -> Mapping[str, str]:
    """The content of each file by its name; scripts end with .sh."""
    options = f" --gpus {len(plan.gpu_files)}" if plan.day_night else ""
    options += f" --shard-mib {plan.shard_mib}" if plan.shard_mib else ""
    commands = {hook: f"{plan.hooks} {hook}{options}" for hook in ("prolog", "epilog", "task-prolog")}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in plan.environment.items())
    commands |= {name: f"{exports}{plan.command} slurm {name}" for name in ("health", "admin-comment")}
    texts = {"gres.conf": _gres_conf(plan), "slurm.conf": _slurm_conf(plan)}
    texts |= {f"{name}.sh": _SCRIPT.format(command=command) for name, command in commands.items()}
    return texts | ({"night-devices.sh": _night_devices(plan)} if plan.day_night else {})


_SCRIPT: Final = """\
#!/bin/sh
# Printed by 'gpucommons slurm config'. Never fails a job.
{command}
exit 0
"""


def _gres_conf(plan: NodePlan) -> str:
    lines = [
        "# gres.conf of this node.",
        "# AutoDetect=nvml would name each GPU by its model; the types below are chosen here.",
        "AutoDetect=off",
    ]
    if plan.day_night:
        cores = [f"{n * plan.cores_per_gpu}-{(n + 1) * plan.cores_per_gpu - 1}" for n in range(len(plan.gpu_files))]
        gpus = list(zip(plan.gpu_files, cores, strict=True))
        lines += (
            "# Each GPU twice: a suspended night job keeps its GPU in Slurm's books, and a day job takes the day one.",
            "# Slurm suspends the job with the same cores: each GPU has cores of its own, the same by day and night.",
            *(f"Name=gpu Type=day File={file} Cores={own}" for file, own in gpus),
            "# Second device nodes of the same GPUs (night-devices.sh): one path twice is an error of slurmd.",
            *(f"Name=gpu Type=night File={night_file(file)} Cores={own}" for file, own in gpus),
        )
    else:
        lines.append("# The GPUs, one line each: --gres=gpu:1 takes any, --gres=gpu:TYPE:1 one of this type.")
        lines += (f"Name=gpu Type={plan.gpu_type} File={file}" for file in plan.gpu_files)
    if plan.shards:
        lines.append(f"# Each GPU can be divided among jobs: --gres=shard:1 is one of {plan.shards} parts of its time.")
        lines += (f"Name=shard Count={plan.shards} File={file}" for file in plan.gpu_files)
    return "\n".join(lines) + "\n"


def night_file(gpu_file: str) -> str:
    """The second device node of a GPU: Slurm refuses a path that is listed twice."""
    directory, _, name = gpu_file.rpartition("/")
    return f"{directory}/night-{name}"


def _night_devices(plan: NodePlan) -> str:
    makes = (
        f"[ -e {night_file(file)} ] || mknod -m 666 {night_file(file)} c $(stat -c '0x%t 0x%T' {file})\n"
        for file in plan.gpu_files
    )
    return f"""\
#!/bin/sh
# Second device nodes of the GPUs, for the type night. Run it as root after each boot, before slurmd starts.
set -e
{"".join(makes)}"""


def _slurm_conf(plan: NodePlan) -> str:
    count, scripts, task_prolog, partitions = len(plan.gpu_files), plan.scripts, "", ""
    gres = f"gpu:day:{count},gpu:night:{count}" if plan.day_night else f"gpu:{plan.gpu_type}:{count}"
    if plan.shards:
        gres += f",shard:{plan.shards * count}"
    if plan.shard_mib:
        task_prolog = f"""\
# Limits jobs with shards that are clients of MPS to {plan.shard_mib} MiB for each shard.
TaskProlog={scripts}/task-prolog.sh
"""
    if plan.day_night:
        cpus = f"DefCpuPerGPU={plan.cores_per_gpu}"
        task_prolog = f"""\
# Gives night jobs the real indices of their GPUs, and lets a day job wait until the memory of the
# suspended night job has left its GPUs.
TaskProlog={scripts}/task-prolog.sh
"""
        partitions = f"""\
# A job of a partition with a higher PriorityTier suspends jobs of one with a lower tier.
PreemptType=preempt/partition_prio
# Preempted jobs are suspended, not ended; GANG resumes them when the others are done.
PreemptMode=SUSPEND,GANG
# night: may be suspended. FORCE:1 lets a job of the other partition have the same cores meanwhile.
# A job takes all cores of its GPUs unless it asks for fewer; without a common core none is suspended.
PartitionName=night Nodes=NODES PriorityTier=1 PreemptMode=SUSPEND OverSubscribe=FORCE:1 {cpus}
# day: is never suspended. Jobs ask for --gres=gpu:day:1, those of night for --gres=gpu:night:1.
PartitionName=day Nodes=NODES PriorityTier=10 PreemptMode=OFF OverSubscribe=FORCE:1 {cpus}
"""
    return f"""\
# Lines for slurm.conf, the same on every node. Lines with NODES and ... are to be completed.
# The kinds of generic resources that jobs may ask for.
GresTypes={"gpu,shard" if plan.shards else "gpu"}
# GPUs are resources of their own for the selection; shards need cons_tres.
SelectType=select/cons_tres
# Processes are found by their cgroup: the agent attributes them to the job by the same cgroup.
ProctrackType=proctrack/cgroup
# CPU time and host memory of each job are counted in its cgroup, for the report of the job.
JobAcctGatherType=jobacct_gather/cgroup
# Alloc: the prolog runs when the job begins, not at its first step, so that its GPUs are known at once.
PrologFlags=Alloc
# Writes which job has which GPUs, for the agent. Less than 50 ms, and never fails.
Prolog={scripts}/prolog.sh
# Removes it.
Epilog={scripts}/epilog.sh
{task_prolog}# Drains the node while a GPU is lost or must be reset, and resumes it afterwards.
HealthCheckProgram={scripts}/health.sh
# Seconds between two checks, and on which nodes: ANY includes drained ones, which the check may resume.
HealthCheckInterval=60
HealthCheckNodeState=ANY
# On the controller: writes the summary of the job into AdminComment.
EpilogSlurmctld={scripts}/admin-comment.sh
# This node. CPUs, RealMemory and so on as 'slurmd -C' prints them.
NodeName={plan.node} Gres={gres} ...
{partitions}"""


# The configuration of Prometheus: the nodes of the cluster as targets of http_sd or file_sd, one group for each node. A
# node that is down stays a target: that it cannot be scraped is what the alert is for.

# One line for each node and partition, also for those that are hidden from users.
LIST_NODES: Final = ("sinfo", "-a", "-h", "-N", "-o", "%N|%o|%R|%G")


def targets(text: str, port: int, *, gpus_only: bool) -> list[dict[str, Any]]:
    """From the output of LIST_NODES. A node is scraped at its NodeAddr."""
    partitions: dict[tuple[str, str], set[str]] = {}
    for line in text.splitlines():
        node, address, partition, gres = (field.strip() for field in line.split("|"))
        if not gpus_only or any(resource.startswith("gpu:") for resource in gres.split(",")):
            partitions.setdefault((node, f"[{address}]" if ":" in address else address), set()).add(partition)
    return [
        {"targets": [f"{address}:{port}"], "labels": {"node": node, "slurm_partition": ",".join(sorted(names))}}
        for (node, address), names in sorted(partitions.items())
    ]
