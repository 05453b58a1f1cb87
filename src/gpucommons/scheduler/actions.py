"""What the policy asks of its shell: a message to a client, or the end of a client's connection."""

from typing import NamedTuple

from gpucommons.scheduler.state import Client, Send

__all__ = ["Action", "Fence", "Send"]


class Fence(NamedTuple):
    """Close this client's connection: its turn was revoked."""

    client: Client
    message: None = None


Action = Send | Fence
