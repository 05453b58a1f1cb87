"""The nvshare_* vocabulary of nvshare's scheduler and exporter, one module per subject."""

from gpucommons.faces.dialects.dialect import dialect_of
from gpucommons.faces.dialects.nvshare import clients, gpus

NVSHARE = dialect_of(
    (gpus, clients),
    name="nvshare",
    port=9402,
    summary="GPUs, clients and turns in the names of nvshare's scheduler",
)
