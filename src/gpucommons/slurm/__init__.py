"""gpucommons under Slurm: Slurm places the jobs, the agent accounts for them, shares and parks on every node.

The state is Slurm's. What the agent knows of a job comes from three places:

| what | from | when |
|---|---|---|
| which job has which GPUs | a file that the prolog writes and the epilog removes (hooks.py) | at its start and end |
| shards, CPUs, whether Slurm suspended it | `scontrol show job -d` (jobs.py) | once per job, and when it stops |
| its processes | their cgroups, as for every batch system (owners/cgroup.py) | at each snapshot |

The hooks (`gpucommons slurm prolog` and so on) never fail a job, and import nothing but this package's `hooks`.
docs/slurm.md is the page for administrators.
"""
