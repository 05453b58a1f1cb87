"""The document of turns as text, for `gpucommons scheduler status` and `explain`. Pure.

Pods, namespaces and names of GPUs come from clients: the lines are escaped when they are printed.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from gpucommons.base.text import gibibytes, parse_decimal
from gpucommons.model.words import DEFAULT_GPU, NO_POD

Document = Mapping[str, Any]

# More clients than this are not named in one line.
_NAMED = 3


def status_lines(turns: Document) -> Iterator[str]:
    quantum = turns["fixed_quantum_s"]
    fixed = "" if quantum is None else f", quantum {seconds(quantum)}"
    shared = "" if turns["share_programs"] == "off" else f", share_programs = {turns['share_programs']}"
    state = f"scheduler {'on' if turns['on'] else 'OFF'}, mode {turns['mode']}{fixed}{shared}"
    count = len(turns["clients"])
    yield f"{state}, {count} client{'' if count == 1 else 's'}"
    for uuid, gpu in sorted(turns["gpus"].items(), key=_place):
        yield from _gpu_lines(uuid, gpu, turns["clients"])
    yield from parked_lines(turns)
    if turns["left_alone"]:
        yield "left alone"
        yield from (f"  {program['name']}: {program['sentence']}" for program in turns["left_alone"])


def _place(item: tuple[str, Document]) -> tuple[bool, list[tuple[bool, str]]]:
    """GPUs by number, each with its MIG devices below it: 6, 6.0, 6.1, 7. What has no number comes last."""
    slot = item[1]["slot"]
    parts = str(slot).split(".")
    return slot is None, [(parse_decimal(part) is None, part.zfill(6)) for part in parts]


def parked_programs(turns: Document) -> Mapping[str, Document]:
    """By key. Empty where the agent parks nothing."""
    parking = turns["parking"]
    return {} if parking is None else parking["programs"]


def parked_lines(turns: Document) -> Iterator[str]:
    if programs := parked_programs(turns):
        yield "parked"
        yield from (f"  {_parked_line(program)}" for program in programs.values())
    held = [arrival for arrival in (turns["parking"] or {"arrivals": {}})["arrivals"].values() if arrival["held"]]
    if held:
        yield "waiting for room"
        yield from (f"  {arrival_line(arrival)}" for arrival in held)


def _parked_line(program: Document) -> str:
    """`alice · lab.ipynb (pid 4711): parked, 40.0 GiB in host memory; parked 14:02 by order; wakes when it is used`."""
    why = (
        f"; not back yet: {program['waits']}"
        if program["waits"]
        else f"; {program['sentence']}"
        if program["sentence"]
        else ""
    )
    return f"{program['name']}: {program['stage']}, {gibibytes(program['host_bytes'])} in host memory{why}"


def arrival_line(arrival: Document) -> str:
    """`dana · train.py (pid 4711) waited 6 s for room: 58.0 GiB of carol's idle notebook was parked`."""
    return f"{arrival['name']} {arrival['sentence']}"


def room_lines(turns: Document, uid: int | None, target: str | None = None) -> Iterator[str]:
    """What is parked of a user's programs, and which of them waited for room as they started; or of a target's."""
    parking = turns["parking"]
    for key, row in ({} if parking is None else parking["programs"]).items():
        if target in _parked_names(key, row) if target is not None else row["uid"] == uid:
            yield f"{_parked_line(row)}."
    for row in ({} if parking is None else parking["arrivals"]).values():
        if target in (row["name"], str(row["pid"]), f"pid:{row['pid']}") if target is not None else row["uid"] == uid:
            yield f"{arrival_line(row)}."


def kept_lines(turns: Document, gpu_uuids: AbstractSet[str], target: str | None = None) -> Iterator[str]:
    """Suspended jobs that keep memory of these GPUs, or that are the target."""
    for job, row in ({} if turns["parking"] is None else turns["parking"]["kept"]).items():
        if target == job or not gpu_uuids.isdisjoint(row["gpu_uuids"]):
            yield f"{row['sentence']}."


def _class(client: Document) -> str:
    return f"; {client['class_sentence']}" if client["class_sentence"] else ""


def _parked_names(key: str, program: Document) -> set[str]:
    return {key, program["name"], *(text for pid in program["processes"] for text in (str(pid), f"pid:{pid}"))}


def _gpu_lines(uuid: str, gpu: Document, clients: Document) -> Iterator[str]:
    left = gpu["quantum_left_s"]
    end = "" if left is None else f", turn ends in about {seconds(left)}"
    assumed = "" if gpu["total_memory_measured"] else " (assumed)"
    gain = f"; {gpu['gain_sentence']}" if gpu["gain_sentence"] else ""
    yield f"{_gpu_name(uuid, gpu)}: {gpu['way_sentence']}{end}{gain}"
    if gpu["running"] or gpu["waiting"] or gpu["way"] != "linked":
        # The memory of programs on several GPUs stands below the first of them.
        yield f"  memory: {gpu['memory_sentence']}{assumed}"
    for id in gpu["running"]:
        if id in clients:
            client = clients[id]
            yield f"  running  {_client_name(id, client)} for {seconds(client['turn_s'] or 0.0)}{_class(client)}"
    for id in gpu["waiting"]:
        wait = clients[id]["wait"] if id in clients else None
        if wait is not None:
            yield f"  waiting  {_client_name(id, clients[id])} for {seconds(wait['waited_s'])}: {wait['sentence']}"

    for id, client in clients.items():
        if client["gpu_uuid"] == uuid and client["held_up"]:
            yield f"  {client['standing']:<8} {_client_name(id, client)}: {client['held_up']}"
    for id, client in _unresponsive(uuid, clients):
        state = "revoked" if client["revoked"] else "late"
        yield f"  {state:<8} {_client_name(id, client)}, {_conduct(client)}"


def _unresponsive(uuid: str, clients: Document) -> Iterator[tuple[str, Document]]:
    """The clients that were asked to release and still may run on this GPU."""
    for id, client in clients.items():
        if client["gpu_uuid"] == uuid and (client["revoked"] or (client["pending_drop"] and client["program"] is None)):
            yield id, client


def _conduct(client: Document) -> str:
    """What an unresponsive client does, and which process it is."""
    shown = client["nvml_bytes"]
    memory = "NVML shows no memory of it" if shown is None else f"it holds {gibibytes(shown)}"
    claimed = ", and reported more memory than the GPU has" if client["over_claimed"] else ""
    process = f"pid {client['pid'] or 'unknown'}, uid {'hidden' if client['uid'] is None else client['uid']}"
    return f"{process}: it does not release; {memory}{claimed}"


def find_clients(turns: Document, target: str) -> list[str]:
    """The ids of the clients and programs that the target means: see `_targets`."""
    return [id for id, client in turns["clients"].items() if target in _targets(id, client)]


def _is_pid_of(target: str, name: str) -> bool:
    """Whether the target `pid:4711` means the program whose name ends with `(pid 4711)` or `(pid 4711 and 2 more)`."""
    kind, _, pid = target.partition(":")
    return kind == "pid" and _names_pid(name, pid)


def _names_pid(name: str, pid: object) -> bool:
    return f"(pid {pid})" in name or f"(pid {pid} and " in name


def _targets(id: str, client: Document) -> set[str]:
    """A client id, a name as `status` prints it, a pod, NAMESPACE/POD, a program's key, or pid:4711."""
    pids = {client["pid"], *client["processes"]} - {None}
    pod = () if client["pod"] in NO_POD else (client["pod"], f"{client['namespace']}/{client['pod']}")
    return {id, client["name"], client["program"] or id, *pod, *(f"pid:{pid}" for pid in pids)}


def behind(turns: Document, id: str) -> list[str]:
    """The clients that a waiting client waits for: those that run on its GPU, and those before it in the queue."""
    client = turns["clients"][id]
    gpu = turns["gpus"].get(client["gpu_uuid"])
    if client["wait"] is None or gpu is None:
        return []
    queue = gpu["waiting"]
    before = queue[: queue.index(id)] if id in queue else []
    return [client_id for client_id in dict.fromkeys([*gpu["running"], *before]) if client_id != id]


def explanations(turns: Document, target: str) -> list[str]:
    """One line for each client or program that the target means."""
    turns_there = turns_of_target(turns, target)
    return [
        *(explanation(turns, id) for id in turns_there["clients"]),
        *(f"{_parked_line(program)}." for program in parked_programs(turns_there).values()),
        *(f"{program['name']} is left alone: {program['sentence']}." for program in turns_there["left_alone"]),
    ]


def turns_of_target(turns: Document, target: str) -> Document:
    """The document of turns with only those clients, parked programs and programs left alone that the target means."""
    parked = {key: program for key, program in parked_programs(turns).items() if target in _parked_names(key, program)}
    alone = [
        program for program in turns["left_alone"] if target == program["name"] or _is_pid_of(target, program["name"])
    ]
    return {
        **turns,
        "clients": {id: turns["clients"][id] for id in find_clients(turns, target)},
        "parking": None if turns["parking"] is None else {**turns["parking"], "programs": parked},
        "left_alone": alone,
    }


def explanation(turns: Document, id: str) -> str:
    """Why a client waits, or that it does not, and what its class means, in one line."""
    client = turns["clients"][id]
    meant = client["class_sentence"]
    return _explanation(turns, id, client) + (f" {meant[0].upper()}{meant[1:]}." if meant else "")


def _explanation(turns: Document, id: str, client: Document) -> str:
    gpu = turns["gpus"].get(client["gpu_uuid"])
    subject = f"{_client_name(id, client)} on {_gpu_name(client['gpu_uuid'], gpu)}"
    wait = client["wait"]
    if not turns["on"]:
        return f"{subject} runs unscheduled: the scheduler is off."
    if client["revoked"]:
        return f"{subject} did not release its turn in time: the turn was revoked; {_conduct(client)}."
    if wait is not None:
        ahead = "" if wait["reason"] in ("quota", "ready") else f"{wait['ahead']} ahead; {_behind(turns, id)}"
        return (
            f"{subject} has been waiting for {seconds(wait['waited_s'])}: {wait['sentence']}; "
            f"{ahead}{_expected_wait(wait['expected_s'])}{_culprits(client['gpu_uuid'], turns['clients'])}."
        )
    if client["turn_s"] is not None:
        dropped = ", and was asked to release" if client["pending_drop"] else ""
        return f"{subject} has been running for {seconds(client['turn_s'])}{dropped}."
    if client["held_up"]:
        return f"{subject} takes no turns: {client['held_up']}."
    if client["standing"] == "resting":
        return f"{subject} is not paused: it does not use the GPU now, and takes no turns."
    return f"{subject} is idle: it has no request."


def _behind(turns: Document, id: str) -> str:
    clients = turns["clients"]
    names = [
        _client_name(client_id, clients[client_id]) if client_id in clients else client_id
        for client_id in behind(turns, id)
    ]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"behind {', '.join(names[:_NAMED])}{more}; " if names else ""


def _culprits(uuid: str, clients: Document) -> str:
    culprits = [f"{_client_name(id, client)}, {_conduct(client)}" for id, client in _unresponsive(uuid, clients)]
    return "".join(f"; unresponsive: {culprit}" for culprit in culprits)


def _expected_wait(expected_s: float | None) -> str:
    return (
        "the time of its next turn is not known" if expected_s is None else f"next turn in about {seconds(expected_s)}"
    )


def _client_name(id: str, client: Document) -> str:
    """With the id where the name has no pid: clients of one pod have the same name. A hidden one has a pseudonym."""
    name = str(client["name"])
    return name if name == id or _names_pid(name, client["pid"]) else f"{name} ({id})"


def _gpu_name(uuid: str, gpu: Document | None) -> str:
    if uuid == DEFAULT_GPU:
        return "unknown GPU"
    return f"GPU {uuid}" if gpu is None or gpu["slot"] is None else f"GPU {gpu['slot']}"


def seconds(length_s: float) -> str:
    if length_s < 10:
        return f"{length_s:.1f} s"
    return f"{length_s:.0f} s" if length_s < 180 else f"{length_s / 60:.0f} min"
