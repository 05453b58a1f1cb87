"""The names of clients, from what the agent knows of processes and users. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpucommons.model.process_identity import ProcessKey
from gpucommons.rules.identities import nvshare_client_name, process_name
from gpucommons.scheduler.policy.quotas import PodName
from gpucommons.scheduler.policy.state import Client


@dataclass(frozen=True, slots=True)
class ProcessNames:
    """The finished name of each process on a GPU, the names of users by uid, and the pod of each process on a GPU
    that is known to be in one, or in none."""

    by_key: Mapping[ProcessKey, str] = field(default_factory=dict)
    users: Mapping[int, str] = field(default_factory=dict)
    pods: Mapping[ProcessKey, PodName] = field(default_factory=dict)

    def pod_of(self, client: Client) -> PodName | None:
        process = client.process
        return None if process is None else self.pods.get(ProcessKey(process.pid, process.start_ticks))

    def of_client(self, client: Client) -> str:
        """That of its pod; else of its process, which the kernel identified when it connected."""
        return nvshare_client_name(client.pod, client.namespace, self._of_process(client))

    def _of_process(self, client: Client) -> str:
        process = client.process
        known = None if process is None else self.by_key.get(ProcessKey(process.pid, process.start_ticks))
        if known is not None:
            return known
        # It is not on a GPU yet, or the GPUs cannot be read.
        owner = self.users.get(client.uid) or f"uid {client.uid}"
        return process_name(owner, "", (client.pid,) if client.pid else ())
