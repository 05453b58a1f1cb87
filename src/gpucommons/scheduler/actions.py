"""What the policy asks of its shell: a message to a client, or the end of a client's connection."""

from typing import NamedTuple

from gpucommons.scheduler.state import Client
from gpucommons.scheduler.wire import MessageType


class Send(NamedTuple):
    """`value` is the payload where the message has one: a memory limit, or a core limit."""

    client: Client
    message: MessageType
    value: int = 0


class Fence(NamedTuple):
    """Close this client's connection: its turn was revoked."""

    client: Client


Action = Send | Fence
