"""`gpucommons slurm ...`: the hooks of Slurm's daemons, the health check, the summary of a job, and the configuration.

Prolog, epilog and task prolog are started before this module is imported (gpucommons/__main__.py); they are here for
--help, and for those who call `gpucommons.cli.main`.
"""

import asyncio
import glob
import os
import shutil
import socket
import sys
import syslog
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpucommons.base.text import printable, printable_lines
from gpucommons.cli.command_line import CommandError, command_group
from gpucommons.cli.fleet import PrometheusUrl
from gpucommons.cli.options import ConfigFile, load_settings
from gpucommons.cli.output import show, show_data, show_line
from gpucommons.cli.reader import Reader
from gpucommons.faces.documents.values import indent
from gpucommons.slurm import hooks
from gpucommons.slurm.jobs import SlurmError, ask_slurm

if TYPE_CHECKING:
    from gpucommons.model.fleet import NodeUse

app = command_group("slurm", "Slurm: hooks for its daemons, health of the node, summaries of jobs, configuration.")

_HOOK_SETTINGS = {"ignore_unknown_options": True, "allow_extra_args": True}
_SECOND_LOOK_S = 6.0
# The database hears of the end of a job a moment later.
_DATABASE_S = 5.0
_DEFAULT_SCRIPTS = "/etc/slurm/gpucommons"
NodeName = Annotated[
    str | None,
    typer.Option(
        "--node", metavar="NAME", help="Name of this node in Slurm. Default: its host name.", show_default=False
    ),
]


@app.command(context_settings=_HOOK_SETTINGS)
def prolog(context: typer.Context) -> None:
    """Prolog= of slurm.conf: write which GPUs the job has, for the agent. Never fails."""
    hooks.main(["prolog", *context.args])


@app.command(context_settings=_HOOK_SETTINGS)
def epilog(context: typer.Context) -> None:
    """Epilog= of slurm.conf: the job has ended. Never fails."""
    hooks.main(["epilog", *context.args])


@app.command(context_settings=_HOOK_SETTINGS)
def task_prolog(context: typer.Context) -> None:
    """TaskProlog= of slurm.conf: GPUs of night jobs, and the wait for the memory of a suspended job. Never fails."""
    hooks.main(["task-prolog", *context.args])


@app.command()
def health(node: NodeName = None, config: ConfigFile = None) -> None:
    """HealthCheckProgram= of slurm.conf: drain the node while a GPU is unusable; resume it when that is over.

    The problem must be in two looks, 6 s apart. Drains of others are never touched. The exit status is always 0.
    """
    from gpucommons.slurm.health import check

    reader = Reader(config=config)
    try:
        line = check(_node_name(node), lambda: reader.ask("problems"), lambda: time.sleep(_SECOND_LOOK_S), ask_slurm)
    except (SlurmError, CommandError) as error:
        line = str(error)
    if line:
        _log(f"health: {line}")


@app.command(name="admin-comment")
def admin_comment(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="Id of the job. Default: that of the environment.", show_default=False),
    ] = None,
    prometheus: PrometheusUrl = None,
    show_only: Annotated[bool, typer.Option("--print", help="Print both comments; change nothing.")] = False,
    config: ConfigFile = None,
) -> None:
    """EpilogSlurmctld= of slurm.conf: write the summary of a job into AdminComment and SystemComment.

    AdminComment has the format of Princeton's jobstats, SystemComment is text. Both are written into Slurm's
    accounting database (sacctmgr), where sacct reads them. The exit status is always 0.
    """
    from gpucommons.faces.fleet.job_comments import admin_comment as jobstats_comment
    from gpucommons.faces.fleet.job_comments import system_comment
    from gpucommons.slurm.jobs import keeps_case, parse_run

    id = job or os.environ.get("SLURM_JOB_ID", "")
    try:
        if not id:
            raise CommandError("no job: name its id, as in 'gpucommons slurm admin-comment 4711 --print'")
        run = parse_run(ask_slurm(["scontrol", "show", "job", "-d", "-o", _of_task(id)]))
        nodes = nodes_of_job(id, prometheus, config)
        comments = {
            "AdminComment": jobstats_comment(nodes, run),
            "SystemComment": system_comment(nodes, run),
        }
        if show_only:
            show(printable_lines(comments.values()))
            return
        if job is None:
            time.sleep(_DATABASE_S)
        # slurmctld changes no job that has ended: the comments go into the accounting database.
        if not keeps_case(ask_slurm(["sacctmgr", "--version"])):
            del comments["AdminComment"]
            _log(f"admin-comment: job {id}: no AdminComment: before Slurm 23.02 sacctmgr writes it in lower case")
        for name, text in comments.items():
            ask_slurm(["sacctmgr", "-i", "update", "job", "where", f"jobid={_of_task(id)}", "set", f"{name}={text}"])
    except (SlurmError, CommandError, ValueError) as error:
        _log(f"admin-comment: {f'job {id}: ' if id else ''}{error}")


def _of_task(job: str) -> str:
    """The last task of an array has the id of the array, which means all of its tasks to scontrol and sacctmgr."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array == job and task else job


def nodes_of_job(job: str, prometheus: str | None, config: Path | None) -> "dict[str, NodeUse]":
    """What the job used on each of its nodes, from Prometheus. Raises CommandError, or ValueError for a wrong id."""
    from gpucommons.faces.fleet.jobs import read_job_nodes
    from gpucommons.faces.fleet.queries import FleetError
    from gpucommons.faces.fleet.reader import FleetSource

    fleet = load_settings(config, {}).settings.fleet
    url = prometheus or fleet.prometheus_url
    if not url:
        raise CommandError("no Prometheus: set fleet.prometheus_url, or use --prometheus URL")
    try:
        return asyncio.run(read_job_nodes(FleetSource(url, fleet.prometheus_selector, fleet.page_url), job))
    except FleetError as error:
        raise CommandError(str(error)) from error


@app.command()
def targets(
    port: Annotated[int, typer.Option(help="Port of the agents.", min=1, max=65535)] = 9460,
    every_node: Annotated[bool, typer.Option("--all", help="Also nodes without GPUs.")] = False,
) -> None:
    """Print the nodes of the cluster as targets for Prometheus: the JSON of http_sd_configs and file_sd_configs."""
    from gpucommons.slurm.configuration import LIST_NODES
    from gpucommons.slurm.configuration import targets as targets_of

    try:
        groups = targets_of(ask_slurm(LIST_NODES), port, gpus_only=not every_node)
    except SlurmError as error:
        raise CommandError(str(error)) from error
    show(indent(groups))


@app.command(name="config")
def configuration(
    gpus: Annotated[
        int | None,
        typer.Option(help="GPUs of the node. Default: as many as /dev has.", min=1, max=64, show_default=False),
    ] = None,
    gpu_type: Annotated[
        str, typer.Option("--type", metavar="NAME", help="Type of the GPUs in --gres=gpu:TYPE:1.")
    ] = "gpu",
    shards: Annotated[int, typer.Option(help="Parts into which jobs may divide a GPU; 0: none.", min=0, max=100)] = 0,
    mps_memory_mib: Annotated[
        int,
        typer.Option(
            help="Memory of a GPU in MiB, for --shards where jobs are clients of MPS: their part of it is their limit.",
            min=0,
        ),
    ] = 0,
    day_night: Annotated[
        bool,
        typer.Option("--day-night", help="Each GPU twice: jobs of partition day suspend those of partition night."),
    ] = False,
    cores: Annotated[
        int | None,
        typer.Option(help="Cores of the node, for --day-night. Default: those of this machine.", min=1, max=4096),
    ] = None,
    scripts: Annotated[
        str, typer.Option(metavar="DIR", help="Directory of the hook scripts on the nodes.")
    ] = _DEFAULT_SCRIPTS,
    write: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the files into this directory instead.", show_default=False),
    ] = None,
    node: NodeName = None,
) -> None:
    """Print the lines of slurm.conf and gres.conf for this node, and the hook scripts, each explained.

    Nothing is changed: copy the lines, and the scripts to --scripts on every node, then restart Slurm's daemons.
    """
    from gpucommons.slurm.configuration import NodePlan, files

    if shards and day_night:
        raise CommandError("--shards and --day-night exclude each other: a suspended job keeps its shards; use one")
    if mps_memory_mib and not shards:
        raise CommandError("--mps-memory-mib needs --shards: it is the memory that the shards of a GPU divide")
    device_files = sorted(glob.glob("/dev/nvidia[0-9]*"), key=lambda path: int(path.removeprefix("/dev/nvidia")))
    gpu_files = device_files if gpus is None else [f"/dev/nvidia{index}" for index in range(gpus)]
    if not gpu_files:
        raise CommandError("no GPU in /dev: run this command on the GPU node, or name their number with --gpus")
    plan = NodePlan(
        _node_name(node),
        gpu_files,
        gpu_type,
        shards,
        day_night,
        cores or _physical_cores(),
        scripts.rstrip("/"),
        f"{sys.executable} -I -S {Path(hooks.__file__).resolve()}",
        shutil.which("gpucommons") or f"{sys.executable} -m gpucommons",
        mps_memory_mib,
        _environment_of_scripts(),
    )
    contents = files(plan)
    if write is None:
        for name, content in contents.items():
            show_data(f"## {name}\n{content}\n")
        return
    write.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        path = write / name
        path.write_text(content, encoding="utf-8")
        path.chmod(0o755 if name.endswith(".sh") else 0o644)
        show_line(printable(str(path)))


def _environment_of_scripts() -> dict[str, str]:
    """PATH with the directory of Slurm's programs, and its configuration where that is not in the usual place."""
    usual = ["/usr/local/bin", "/usr/bin", "/bin"]
    found = shutil.which("scontrol")
    directories = dict.fromkeys([*([os.path.dirname(found)] if found else []), *usual])
    environment = {"PATH": os.pathsep.join(directories)}
    if config := os.environ.get("SLURM_CONF"):
        environment["SLURM_CONF"] = config
    return environment


def _physical_cores() -> int:
    """Slurm's Cores= counts cores, not the threads of a core."""
    siblings = glob.glob("/sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list")
    return len({Path(path).read_text() for path in siblings}) or os.cpu_count() or 1


def _node_name(given: str | None) -> str:
    return given or os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def _log(line: str) -> None:
    """Slurm discards what its programs print: syslog has it, too."""
    syslog.openlog("gpucommons-slurm", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_NOTICE, line)
    show(printable_lines([line]))
