"""`gpucommons gpus`: the GPUs of this node, as a table or as the API's JSON."""

from gpucommons.cli.gpus_view import gpu_lines, missing
from gpucommons.cli.options import AsJson, CaFile, ConfigFile, Connect, PasswordFile, Procfs, Simulate
from gpucommons.cli.output import show, show_coloured, show_line, terminal_width
from gpucommons.cli.reader import Reader
from gpucommons.faces.documents.values import indented


def gpus(
    as_json: AsJson = False,
    connect: Connect = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
    config: ConfigFile = None,
    simulate: Simulate = None,
    procfs: Procfs = None,
) -> None:
    """List the GPUs with memory, utilisation, power and health."""
    reader = Reader(connect, password_file, ca_file, config, simulate, procfs)
    document = reader.get("gpus")
    if as_json:
        show(indented(document))
    elif document["gpus"] is None:
        show_line(missing(reader.get("snapshot")))
    else:
        for line in gpu_lines(document["gpus"], terminal_width()):
            show_coloured(*line)
