"""What an XID error of the NVIDIA driver means, and what to do about it. Pure: a table.

Only `Cause` decides how grave an XID is: a fault of a program ends the program, a fault of the hardware the GPU.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class Cause(StrEnum):
    PROGRAM = "program"
    HARDWARE = "hardware"
    UNCLEAR = "unclear"


class XidMeaning(NamedTuple):
    meaning: str
    cause: Cause
    remedy: str

    @property
    def sentence(self) -> str:
        return f"{self.meaning}{_BLAME[self.cause]}"


_BLAME: Final = {
    Cause.PROGRAM: " of the program, not the hardware",
    Cause.HARDWARE: ", a fault of the hardware",
    Cause.UNCLEAR: "",
}
_INFORM: Final = "Inform the owner of the program; the GPU needs no repair."
_RESET: Final = "Take the GPU out of service and reset it (nvidia-smi --gpu-reset); replace it if this repeats."
_REBOOT: Final = "Drain the node and reboot it; check the seating, power and cooling of the GPU if this repeats."
_WATCH: Final = "Watch whether it repeats; the kernel log (dmesg) has the details."

_MEANINGS: Final = {
    8: XidMeaning("timeout of the GPU's processing", Cause.UNCLEAR, _WATCH),
    13: XidMeaning("exception in a computation", Cause.PROGRAM, _INFORM),
    31: XidMeaning("page fault", Cause.PROGRAM, _INFORM),
    32: XidMeaning("invalid or corrupted command stream", Cause.UNCLEAR, _WATCH),
    38: XidMeaning("firmware error of the driver", Cause.UNCLEAR, _WATCH),
    43: XidMeaning("halted computation", Cause.PROGRAM, _INFORM),
    45: XidMeaning("removed channel", Cause.PROGRAM, _INFORM),
    48: XidMeaning("double-bit ECC error of the memory", Cause.HARDWARE, _RESET),
    61: XidMeaning("breakpoint of the GPU's internal microcontroller", Cause.HARDWARE, _RESET),
    62: XidMeaning("halt of the GPU's internal microcontroller", Cause.HARDWARE, _RESET),
    63: XidMeaning("a row of memory is remapped at the next reset", Cause.UNCLEAR, "Reset the GPU when it is free."),
    64: XidMeaning("a faulty row of memory could not be remapped", Cause.HARDWARE, _RESET),
    68: XidMeaning("exception of the video processor", Cause.PROGRAM, _INFORM),
    69: XidMeaning("exception of the graphics engine", Cause.PROGRAM, _INFORM),
    74: XidMeaning("NVLink error", Cause.HARDWARE, "Check the NVLink bridge or fabric, then reset the GPU."),
    79: XidMeaning("the GPU has fallen off the bus", Cause.HARDWARE, _REBOOT),
    92: XidMeaning("many single-bit ECC errors", Cause.UNCLEAR, _WATCH),
    94: XidMeaning("contained memory error: one program was ended", Cause.UNCLEAR, "Reset the GPU when it is free."),
    95: XidMeaning("uncontained memory error", Cause.HARDWARE, _RESET),
    109: XidMeaning("timeout of a context switch", Cause.UNCLEAR, _WATCH),
    119: XidMeaning("the GPU's system processor does not answer", Cause.HARDWARE, _RESET),
    120: XidMeaning("error of the GPU's system processor", Cause.HARDWARE, _RESET),
    140: XidMeaning("unrecovered ECC error", Cause.HARDWARE, _RESET),
    143: XidMeaning("failed initialisation of the GPU", Cause.HARDWARE, _RESET),
}


def xid_meaning(code: int) -> XidMeaning:
    return _MEANINGS.get(code) or XidMeaning("error that the driver's documentation explains", Cause.UNCLEAR, _WATCH)


def codes_with(cause: Cause) -> frozenset[int]:
    return frozenset(code for code, known in _MEANINGS.items() if known.cause is cause)
