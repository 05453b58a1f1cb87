"""What the options of `gpucommons top` change: which GPUs it shows, and the characters and colours. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gpucommons.base.text import Printable, parse_decimal, printable, printable_lines
from gpucommons.cli.top_table import sum_known

Document = Mapping[str, Any]

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
ALL: Final = "all"
_ORDER: Final = "CUDA_DEVICE_ORDER"
_UUIDS: Final = ("GPU-", "MIG-")

# Which GPUs are shown.
#
# The rows of other GPUs are left out of the document, so that every tab has the same choice, and sums are those of the
# chosen GPUs. What belongs to no GPU stays: the queue, events, the sentence about the node.


class GpuChoice(NamedTuple):
    """`names` are indices, slots of MIG devices such as 6.0, or the beginnings of UUIDs; none: every GPU is shown."""

    names: tuple[str, ...] = ()
    origin: str = ""


EVERY_GPU: Final = GpuChoice()


def choice_of(only: Sequence[str], environment: Mapping[str, str]) -> GpuChoice:
    """Of -o, else of CUDA_VISIBLE_DEVICES. `-o all` shows every GPU."""
    given = tuple(name for text in only for name in text.replace(",", " ").split())
    if given:
        return EVERY_GPU if ALL in given else GpuChoice(given, "-o")
    visible = tuple(name.strip() for name in environment.get(VISIBLE, "").split(","))
    return GpuChoice(visible, VISIBLE) if all(_names_a_gpu(name, environment) for name in visible) else EVERY_GPU


def _names_a_gpu(name: str, environment: Mapping[str, str]) -> bool:
    """By default CUDA numbers the GPUs by their speed, not as the driver does: a number may mean another GPU."""
    by_bus = environment.get(_ORDER) == "PCI_BUS_ID"
    return name.startswith(_UUIDS) or (by_bus and parse_decimal(name) is not None)


def choose_uuids(document: Document, choice: GpuChoice) -> frozenset[str]:
    """Of GPUs and MIG devices. A GPU includes its MIG devices."""
    gpus = (document["gpus"] or {"by_uuid": {}})["by_uuid"]
    uuids: set[str] = set()
    for uuid, gpu in gpus.items():
        if _is_named(choice.names, str(gpu["index"]), uuid):
            uuids |= {uuid, *gpu["mig"]}
        uuids |= {mig for mig, instance in gpu["mig"].items() if _is_named(choice.names, instance["slot"], mig)}
    return frozenset(uuids)


def _is_named(names: Iterable[str], slot: str, uuid: str) -> bool:
    return any(
        name == slot or (name.upper().startswith(_UUIDS) and uuid.upper().startswith(name.upper())) for name in names
    )


def unknown_names(document: Document, choice: GpuChoice) -> list[str]:
    """The names of the choice that no GPU of the node has."""
    return [name for name in choice.names if not choose_uuids(document, GpuChoice((name,)))]


def restrict(document: Document, choice: GpuChoice) -> Document:
    """The document with the rows of the chosen GPUs."""
    if not choice.names:
        return document
    uuids = choose_uuids(document, choice)
    return {
        **document,
        "gpus": document["gpus"] and {**document["gpus"], "by_uuid": dict(_gpus(document["gpus"]["by_uuid"], uuids))},
        "slots": document["slots"] and {uuid: slot for uuid, slot in document["slots"].items() if uuid in uuids},
        "who": document["who"] and _who(document["who"], _places(document, uuids), uuids),
        "turns": document["turns"] and _turns(document["turns"], uuids),
        "problems": {
            key: problem
            for key, problem in document["problems"].items()
            if problem["gpu_uuid"] is None or problem["gpu_uuid"] in uuids
        },
    }


def _gpus(gpus: Mapping[str, Document], uuids: frozenset[str]) -> Iterator[tuple[str, Document]]:
    """A MIG device is shown below its GPU."""
    for uuid, gpu in gpus.items():
        mig = {mig_uuid: instance for mig_uuid, instance in gpu["mig"].items() if mig_uuid in uuids}
        if uuid in uuids or mig:
            yield uuid, {**gpu, "mig": mig}


def _places(document: Document, uuids: frozenset[str]) -> frozenset[str]:
    """The names of the chosen slots."""
    gpus = (document["gpus"] or {"by_uuid": {}})["by_uuid"]
    whole = {str(gpu["index"]) for uuid, gpu in gpus.items() if uuid in uuids}
    return frozenset(
        whole | {instance["slot"] for gpu in gpus.values() for uuid, instance in gpu["mig"].items() if uuid in uuids}
    )


def _who(who: Document, places: frozenset[str], uuids: frozenset[str]) -> Document:
    processes = {
        key: row
        for key, row in who["processes"].items()
        if (row["slot"] or str(row["gpu_index"])) in places or row["gpu_uuid"] in uuids
    }
    return {
        **who,
        "processes": processes,
        "owners": dict(_owners(who["owners"], uuids)),
        "unattributed": {uuid: parts for uuid, parts in who["unattributed"].items() if uuid in uuids},
    }


def _owners(owners: Mapping[str, Document], uuids: frozenset[str]) -> Iterator[tuple[str, Document]]:
    """What each owner uses of the chosen GPUs."""
    for key, owner in owners.items():
        by_gpu = {uuid: share for uuid, share in owner["by_gpu"].items() if uuid in uuids}
        if by_gpu:
            sums = {
                name: sum_known(share[name] for share in by_gpu.values())
                for name in ("memory_bytes", "sm_ratio", "power_watts", "gpu_hours_today")
            }
            yield key, {**owner, **sums, "by_gpu": by_gpu}


def _turns(turns: Document, uuids: frozenset[str]) -> Document:
    gpus = {uuid: gpu for uuid, gpu in turns["gpus"].items() if uuid in uuids}
    there = {id for gpu in gpus.values() for id in (*gpu["running"], *gpu["waiting"])}
    clients = {id: client for id, client in turns["clients"].items() if id in there or client["gpu_uuid"] in uuids}
    parking = turns["parking"] and {
        **turns["parking"],
        "programs": {
            key: program for key, program in turns["parking"]["programs"].items() if program["gpu_uuid"] in uuids
        },
    }
    return {**turns, "gpus": gpus, "clients": clients, "parking": parking}


# Characters and colours.

_ASCII: Final = str.maketrans(
    {
        **dict(zip("▁▂▃▄▅▆▇█", "_.:-=+*#", strict=True)),
        "░": ".",
        "·": "-",
        "…": "~",
        "↑": "^",
        "↓": "v",
        "°": "",
        "├": "|",
        "└": "`",
        "─": "-",
        "—": "-",
        "≈": "~",
    }
)
# On a light background, the colours of the terminal's palette that are too bright to be read.
_ON_LIGHT: Final = {"yellow": "#7a5200", "green": "#116329", "red": "#a40e26", "bold red": "bold #a40e26"}


class Look(NamedTuple):
    """`is_ascii`: only characters of ASCII; any other one of a name is shown as a question mark."""

    is_ascii: bool = False
    is_light: bool = False

    def text(self, text: Printable) -> Printable:
        if not self.is_ascii:
            return text
        simple = text.translate(_ASCII).encode("ascii", "replace").decode()
        return printable_lines(simple.splitlines()) if "\n" in simple else printable(simple)

    def colour(self, colour: str) -> str:
        return _ON_LIGHT.get(colour, colour) if self.is_light else colour
