"""The lines of slurm.conf and gres.conf for a node with gpucommons, and the hook scripts, each explained; Prometheus'
targets. Pure.

Slurm takes the path of a hook and no arguments, so each hook is a script of a few lines. A script ends with status 0
even if gpucommons was removed: a prolog that fails drains the node.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_HOOKS: Final = ("prolog", "epilog", "task-prolog")


@dataclass(frozen=True, slots=True)
class NodePlan:
    """`gpu_files` are the device files of the node's GPUs. `shards` is how many each GPU has; 0: whole GPUs only.

    `mps_memory_mib` is the memory of a GPU where jobs with shards run under MPS; 0: they do not.

    With `day_night`, each GPU is listed twice, as type day and as type night; then `cores`, the cores of the node, are
    divided among the GPUs. `scripts` is the directory of the hook scripts; `python`, `hooks_file` and `command` are
    those of this installation.
    """

    node: str
    gpu_files: Sequence[str]
    gpu_type: str
    shards: int
    day_night: bool
    cores: int
    scripts: str
    python: str
    hooks_file: str
    command: str
    mps_memory_mib: int = 0

    @property
    def shard_mib(self) -> int:
        """The memory that goes with one shard under MPS; 0: no limit."""
        return self.mps_memory_mib // self.shards if self.shards else 0

    @property
    def cores_per_gpu(self) -> int:
        return max(1, self.cores // len(self.gpu_files))


def files(plan: NodePlan) -> Mapping[str, str]:
    """The content of each file by its name; scripts end with .sh."""
    texts = {"gres.conf": _text(_gres(plan)), "slurm.conf": _text(_slurm(plan))}
    options = f" --gpus {len(plan.gpu_files)}" if plan.day_night else ""
    options += f" --shard-mib {plan.shard_mib}" if plan.shard_mib else ""
    for hook in _HOOKS:
        texts[f"{hook}.sh"] = _script(f"{plan.python} -I -S {plan.hooks_file} {hook}{options}")
    texts["health.sh"] = _script(f"{plan.command} slurm health")
    texts["admin-comment.sh"] = _script(f"{plan.command} slurm admin-comment")
    if plan.day_night:
        texts["night-devices.sh"] = _text(_night_devices(plan))
    return texts


def night_file(gpu_file: str) -> str:
    """The second device node of a GPU: Slurm refuses a path that is listed twice."""
    directory, _, name = gpu_file.rpartition("/")
    return f"{directory}/night-{name}"


def _gres(plan: NodePlan) -> Iterator[str]:
    yield "# gres.conf of this node."
    yield "# AutoDetect=nvml would name each GPU by its model; the types below are chosen here."
    yield "AutoDetect=off"
    if plan.day_night:
        cores = [f"{n * plan.cores_per_gpu}-{(n + 1) * plan.cores_per_gpu - 1}" for n in range(len(plan.gpu_files))]
        rows = list(zip(plan.gpu_files, cores, strict=True))
        yield "# Each GPU twice: a suspended night job keeps its GPU in Slurm's books, and a day job takes the day one."
        yield "# Slurm suspends the job with the same cores: each GPU has cores of its own, the same by day and night."
        yield from (f"Name=gpu Type=day File={file} Cores={own}" for file, own in rows)
        yield "# Second device nodes of the same GPUs (night-devices.sh): one path twice is an error of slurmd."
        yield from (f"Name=gpu Type=night File={night_file(file)} Cores={own}" for file, own in rows)
        return
    yield "# The GPUs, one line each: --gres=gpu:1 takes any, --gres=gpu:TYPE:1 one of this type."
    yield from (f"Name=gpu Type={plan.gpu_type} File={file}" for file in plan.gpu_files)
    if plan.shards:
        yield f"# Each GPU can be divided among jobs: --gres=shard:1 is one of {plan.shards} parts of its time."
        yield from (f"Name=shard Count={plan.shards} File={file}" for file in plan.gpu_files)


def _slurm(plan: NodePlan) -> Iterator[str]:
    count, scripts = len(plan.gpu_files), plan.scripts
    types = "gpu,shard" if plan.shards else "gpu"
    gres = f"gpu:day:{count},gpu:night:{count}" if plan.day_night else f"gpu:{plan.gpu_type}:{count}"
    if plan.shards:
        gres += f",shard:{plan.shards * count}"
    yield "# Lines for slurm.conf, the same on every node. Lines with NODES and ... are to be completed."
    yield "# The kinds of generic resources that jobs may ask for."
    yield f"GresTypes={types}"
    yield "# GPUs are resources of their own for the selection; shards need cons_tres."
    yield "SelectType=select/cons_tres"
    yield "# Processes are found by their cgroup: the agent attributes them to the job by the same cgroup."
    yield "ProctrackType=proctrack/cgroup"
    yield "# CPU time and host memory of each job are counted in its cgroup, for the report of the job."
    yield "JobAcctGatherType=jobacct_gather/cgroup"
    yield "# Alloc: the prolog runs when the job begins, not at its first step, so that its GPUs are known at once."
    yield "PrologFlags=Alloc"
    yield "# Writes which job has which GPUs, for the agent. Less than 50 ms, and never fails."
    yield f"Prolog={scripts}/prolog.sh"
    yield "# Removes it."
    yield f"Epilog={scripts}/epilog.sh"
    if plan.day_night:
        yield "# Gives night jobs the real indices of their GPUs, and lets a day job wait until the memory of the"
        yield "# suspended night job has left its GPUs."
        yield f"TaskProlog={scripts}/task-prolog.sh"
    if plan.shard_mib:
        yield f"# Limits jobs with shards that are clients of MPS to {plan.shard_mib} MiB for each shard."
        yield f"TaskProlog={scripts}/task-prolog.sh"
    yield "# Drains the node while a GPU is lost or must be reset, and resumes it afterwards."
    yield f"HealthCheckProgram={scripts}/health.sh"
    yield "# Seconds between two checks, and on which nodes: ANY includes drained ones, which the check may resume."
    yield "HealthCheckInterval=60"
    yield "HealthCheckNodeState=ANY"
    yield "# On the controller: writes the summary of the job into AdminComment."
    yield f"EpilogSlurmctld={scripts}/admin-comment.sh"
    yield "# This node. CPUs, RealMemory and so on as 'slurmd -C' prints them."
    yield f"NodeName={plan.node} Gres={gres} ..."
    if plan.day_night:
        yield "# A job of a partition with a higher PriorityTier suspends jobs of one with a lower tier."
        yield "PreemptType=preempt/partition_prio"
        yield "# Preempted jobs are suspended, not ended; GANG resumes them when the others are done."
        yield "PreemptMode=SUSPEND,GANG"
        cpus = f"DefCpuPerGPU={plan.cores_per_gpu}"
        yield "# night: may be suspended. FORCE:1 lets a job of the other partition have the same cores meanwhile."
        yield "# A job takes all cores of its GPUs unless it asks for fewer; without a common core none is suspended."
        yield f"PartitionName=night Nodes=NODES PriorityTier=1 PreemptMode=SUSPEND OverSubscribe=FORCE:1 {cpus}"
        yield "# day: is never suspended. Jobs ask for --gres=gpu:day:1, those of night for --gres=gpu:night:1."
        yield f"PartitionName=day Nodes=NODES PriorityTier=10 PreemptMode=OFF OverSubscribe=FORCE:1 {cpus}"


def _night_devices(plan: NodePlan) -> Iterator[str]:
    yield "#!/bin/sh"
    yield "# Second device nodes of the GPUs, for the type night. Run it as root after each boot, before slurmd starts."
    yield "set -e"
    for file in plan.gpu_files:
        night = night_file(file)
        yield f"""[ -e {night} ] || mknod -m 666 {night} c $(stat -c '0x%t 0x%T' {file})"""


def _script(command: str) -> str:
    return _text(["#!/bin/sh", "# Printed by 'gpucommons slurm config'. Never fails a job.", command, "exit 0"])


def _text(lines: Iterator[str] | Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


# The configuration of Prometheus: the nodes of the cluster as targets of http_sd or file_sd.
#
# One group for each node, with its name and partitions as labels. A node that is down stays a target: that it cannot be
# scraped is what the alert is for.

# One line for each node and partition.
LIST_NODES: Final = ("sinfo", "-h", "-N", "-o", "%N|%o|%R|%G")


def targets(text: str, port: int, *, gpus_only: bool) -> list[dict[str, Any]]:
    """From the output of LIST_NODES. A node is scraped at its NodeAddr."""
    partitions: dict[tuple[str, str], list[str]] = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 4 or (gpus_only and not _has_gpus(fields[3])):
            continue
        node, address, partition, _ = fields
        partitions.setdefault((node, address or node), []).append(partition)
    return [
        {
            "targets": [f"[{address}]:{port}" if ":" in address else f"{address}:{port}"],
            "labels": {"node": node, "slurm_partition": ",".join(sorted(set(names)))},
        }
        for (node, address), names in sorted(partitions.items())
    ]


def _has_gpus(gres: str) -> bool:
    return any(resource.partition(":")[0] == "gpu" for resource in gres.split(","))
