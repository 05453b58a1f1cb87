"""The first lines of `gpucommons top`: the node, or the nodes, and the state of each in one sentence. Pure."""

from collections.abc import Iterator, Sequence

from gpucommons.base.text import Printable, printable
from gpucommons.cli.output import Line, Span
from gpucommons.cli.summary_view import summary_lines
from gpucommons.cli.top_node import TopNode
from gpucommons.cli.top_table import percent

_LONGEST_REASON = 120


def head_line(nodes: Sequence[TopNode]) -> Printable:
    if len(nodes) > 1:
        lost = sum(bool(node.lost) for node in nodes)
        return printable(f"{len(nodes)} nodes" + (f" · {lost} without an answer" if lost else ""))
    (node,) = nodes
    if node.document is None:
        return printable(
            f"no agent answers at {node.feed.where}: {node.lost}"
            if node.lost
            else f"connecting to {node.feed.where} ..."
        )
    return printable(" · ".join(_parts(node)))


def _parts(node: TopNode) -> Iterator[str]:
    document = node.document
    assert document is not None
    if node.lost:
        yield "LOST, last known state"
    yield document["hostname"]
    if document["simulated"]:
        yield f"SIMULATED {document['simulated']}"
    cpu, memory = document["node"]["cpu"], document["node"]["memory"]
    yield f"CPU {percent(None if cpu is None else cpu['utilization_ratio'])}"
    if memory is not None and memory["available_bytes"] is not None:
        yield f"memory {percent(1 - memory['available_bytes'] / memory['total_bytes'])}"
    sources = document["node"]["sources"].items()
    failing = [name for name, source in sources if source["state"] in ("failing", "stale")]
    if failing:
        yield f"not read: {', '.join(failing)}"


def sentence_lines(nodes: Sequence[TopNode], names: Sequence[str], width: int) -> Iterator[Line]:
    """Of several nodes each has lines of its own, also one that does not answer."""
    if len(nodes) == 1:
        if nodes[0].document is not None:
            yield from summary_lines(nodes[0].document["summary"], width)
        return
    for node, name in zip(nodes, names, strict=True):
        if node.lost:
            reason = printable(f"no answer: {node.lost}", _LONGEST_REASON)
            yield [Span(printable(f"{name}: ")), Span(reason, "bold red")]
        elif node.document is None:
            yield [Span(printable(f"{name}: connecting ..."))]
        else:
            yield from summary_lines(node.document["summary"], width, f"{name}: ")
