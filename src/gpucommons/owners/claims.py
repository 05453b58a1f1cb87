"""The slots that containers, pods, batch jobs and DS01's state file claim, whether they use them or not. Pure.

Claims change only when one of these does, and are computed then, not at every snapshot.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from fractions import Fraction
from typing import NamedTuple

from gpucommons.model.allocations import (
    UNATTRIBUTED,
    Access,
    Account,
    Slot,
    SlotInfo,
    TrackedContainer,
    UnmanagedContainer,
    WorkloadKind,
)
from gpucommons.model.leases import Lease
from gpucommons.model.names import job_of_lease
from gpucommons.model.ownership import Owner, OwnerKind, PodPlace, Workload
from gpucommons.model.workloads import (
    Container,
    ContainerState,
    Ds01Entry,
    Ds01Reading,
    JobMappingReading,
    JobPlace,
    Pod,
    PodDevices,
    PodDevicesReading,
    PodReading,
    UsersReading,
)
from gpucommons.owners.owner import Candidate, OwnerRules, owner_of
from gpucommons.owners.slots import (
    RequestedDevices,
    SlotTable,
    devices_of,
    interface_of,
    is_infrastructure,
    is_tracked,
    slice_owner,
    user_of,
)

_POD_NAME, _POD_NAMESPACE = "io.kubernetes.pod.name", "io.kubernetes.pod.namespace"
_OVER = ("Succeeded", "Failed")
_WHOLE = Fraction(1)


class Claim(NamedTuple):
    """`slots` with the claimed fraction of each. With `by_itself`, it holds them even if it has no process there. A
    workload that may use every GPU does not: otherwise one monitoring container would hold them all."""

    kind: WorkloadKind
    name: str
    id: str
    account: Account
    slots: tuple[tuple[SlotInfo, Fraction], ...]
    access: Access
    by_itself: bool
    running: bool
    interface: str
    managed: bool
    since_wall_s: float | None = None


class Claims(NamedTuple):
    claims: tuple[Claim, ...] = ()
    containers: tuple[TrackedContainer, ...] = ()
    unmanaged: tuple[UnmanagedContainer, ...] = ()


class ClaimInputs(NamedTuple):
    """The inputs of claims. `process_users` are the users of containers that are known only from their processes,
    by container id; `job_users` those of batch jobs, by job id: uid and name."""

    table: SlotTable
    containers: Mapping[str, Container] = {}
    ds01: Ds01Reading | None = None
    pods: PodReading | None = None
    pod_devices: PodDevicesReading | None = None
    replicas: Mapping[str, int] = {}
    users: UsersReading = UsersReading()
    process_users: Mapping[str, tuple[int, str]] = {}
    job_mapping: JobMappingReading | None = None
    job_users: Mapping[str, tuple[int, str]] = {}
    rules: OwnerRules = OwnerRules()
    leases: tuple[Lease, ...] = ()


def claims_of(inputs: ClaimInputs) -> Claims:
    fold = _Fold(inputs)
    return Claims(
        (*fold.claims, *fold.from_state_file(), *fold.of_pods(), *fold.of_jobs(), *fold.of_leases()),
        tuple(fold.tracked),
        tuple(fold.unmanaged),
    )


class _Fold:
    def __init__(self, inputs: ClaimInputs) -> None:
        self._in = inputs
        self._uids = {name: uid for uid, name in inputs.users.names.items()}
        self._in_pods = {(d.namespace, d.pod) for d in _given_devices(inputs)}
        self._entries = {entry.container: entry for entry in (inputs.ds01 and inputs.ds01.entries) or ()}
        self.tracked: list[TrackedContainer] = []
        self.unmanaged: list[UnmanagedContainer] = []
        self.claims = [claim for c in inputs.containers.values() if (claim := self._of_container(c))]

    def _of_container(self, container: Container) -> Claim | None:
        if (container.labels.get(_POD_NAMESPACE, ""), container.labels.get(_POD_NAME, "")) in self._in_pods:
            # The kubelet reports it as a pod.
            return None
        devices = devices_of(container, self._in.table)
        # Older DS01 installs set no labels: what their state file allocates is tracked by its name.
        entry = self._entries.get(container.name)
        tracked = entry is not None or is_tracked(container)
        if devices is None and not tracked:
            return None
        account = self._account(container, entry.user if entry else "")
        interface = self._interface(container)
        running = container.state.has_processes
        if tracked:
            has_gpu = devices is not None or entry is not None
            user = self._user_for_ds01(container, account, entry)
            self.tracked.append(TrackedContainer(container.id, container.name, user, interface, running, has_gpu))
        if devices is None:
            return None
        managed = tracked and devices.access is Access.SPECIFIC and not devices.bypasses
        if not managed:
            if not is_infrastructure(container):
                self.unmanaged.append(
                    UnmanagedContainer(container.name, account.user, devices.gpu_count, devices.access, running)
                )
            if not running:
                # No slot is reserved for it: it holds nothing until it runs again.
                return None
        return Claim(
            WorkloadKind.CONTAINER,
            container.name,
            container.id,
            account,
            _with_unknown(devices),
            devices.access,
            devices.access is not Access.ALL,
            running,
            interface,
            managed,
            _since(container),
        )

    def _user_for_ds01(self, container: Container, account: Account, entry: Ds01Entry | None) -> str:
        """The monitoring of a site runs as root, which is not one of its users."""
        named = user_of(container, self._in.users.names) or (entry.user if entry else "")
        return named if is_infrastructure(container) else account.user

    def from_state_file(self) -> Iterator[Claim]:
        """Claims that no container has: older DS01 installs set no device labels."""
        claimed = {claim.name for claim in self.claims}
        by_name = {container.name: container for container in self._in.containers.values()}
        for entry in self._entries.values():
            if entry.container not in claimed:
                yield self._of_entry(entry, by_name.get(entry.container))

    def _of_entry(self, entry: Ds01Entry, container: Container | None) -> Claim:
        stand_in = container or Container("", entry.container, "", ContainerState.UNKNOWN)
        if container is not None:
            running = container.state.has_processes
        else:
            # If a runtime answers and has no such container, the slot is still reserved for it.
            running = not entry.stopped and not self._in.containers
        account = self._account(stand_in, entry.user)
        interface = self._interface(stand_in)
        if container is None:
            self.tracked.append(TrackedContainer("", entry.container, account.user, interface, running, True))
        devices = RequestedDevices(Access.SPECIFIC, self._in.table.find(entry.gpu_id))
        if not devices.slots:
            devices = devices._replace(unknown=(entry.gpu_id,))
        return Claim(
            WorkloadKind.CONTAINER,
            entry.container,
            stand_in.id or f"state/{entry.container}",
            account,
            _with_unknown(devices),
            Access.SPECIFIC,
            True,
            running,
            interface,
            True,
            entry.allocated_wall_s,
        )

    def of_pods(self) -> Iterator[Claim]:
        by_pod: dict[tuple[str, str], list[PodDevices]] = {}
        for given in _given_devices(self._in):
            by_pod.setdefault((given.namespace, given.pod), []).append(given)
        pods = {(pod.namespace, pod.name): pod for pod in self._in.pods.by_uid.values()} if self._in.pods else {}
        for (namespace, name), devices in by_pod.items():
            pod = pods.get((namespace, name))
            if pod is None or pod.phase not in _OVER:
                yield self._of_pod(namespace, name, devices, pod)

    def _of_pod(self, namespace: str, name: str, given: list[PodDevices], pod: Pod | None) -> Claim:
        slots: dict[SlotInfo, Fraction] = {}
        for device in (device for pod in given for device in pod.devices):
            replicas = 1 if device.replica is None else self._in.replicas.get(device.gpu_uuid or "", 1)
            for info in self._in.table.device(device):
                slots[info] = min(slots.get(info, Fraction(0)) + Fraction(1, replicas), _WHOLE)
        place = PodPlace(pod.uid if pod else f"{namespace}/{name}", name, namespace)
        owner, _ = owner_of(Candidate(Workload(pod=place), pod.labels if pod else {}), self._in.rules)
        return Claim(
            WorkloadKind.POD,
            name,
            place.uid,
            account_of(owner, namespace=namespace, pod=name),
            tuple(slots.items()),
            Access.SPECIFIC,
            True,
            pod is None or pod.phase in ("", "Running"),
            "kubernetes",
            True,
        )

    def of_jobs(self) -> Iterator[Claim]:
        """While a batch job runs, it holds the GPUs allocated to it, whether it has a process there or not."""
        places: dict[str, dict[JobPlace, Fraction]] = {}
        uids: dict[str, int | None] = {}
        mapping = self._in.job_mapping or JobMappingReading()
        for place, jobs in mapping.jobs.items():
            for job in jobs:
                places.setdefault(job.id, {})[place] = job.share
                uids[job.id] = job.uid if uids.get(job.id, job.uid) == job.uid else None
        for job_id, given in places.items():
            slots = {info: share for place, share in given.items() for info in self._in.table.gpu_instance(*place)}
            if slots:
                yield self._of_job(job_id, uids[job_id], tuple(slots.items()))

    def _of_job(self, job: str, file_uid: int | None, slots: tuple[tuple[SlotInfo, Fraction], ...]) -> Claim:
        users = self._in.users
        uid, user = self._in.job_users.get(job, (None, ""))
        if uid is None and file_uid is not None:
            uid, user = file_uid, users.names.get(file_uid, str(file_uid))
        owner, _ = owner_of(Candidate(Workload(uid=uid, user=user or None, job=job)), self._in.rules)
        account = account_of(owner, user=user, group=users.group_of.get(user, ""), job=job)
        return Claim(WorkloadKind.JOB, job, f"job/{job}", account, slots, Access.SPECIFIC, True, True, "slurm", True)

    def of_leases(self) -> Iterator[Claim]:
        """A lease holds its slots from the grant on, and is billed as a job of its user.

        The workload has the name of the program: what holds a GPU is seen by all users and in the metrics.
        """
        for lease in self._in.leases:
            request = lease.request
            slots = tuple((info, _WHOLE) for uuid in lease.slots for info in self._in.table.find(uuid))
            job = job_of_lease(request.id)
            owner = Owner(OwnerKind.USER, str(request.uid), request.user)
            account = account_of(owner, user=request.user, group=self._in.users.group_of.get(request.user, ""), job=job)
            yield Claim(
                WorkloadKind.LEASE,
                request.program or job,
                f"lease/{request.id}",
                account,
                slots,
                Access.SPECIFIC,
                True,
                True,
                "lease",
                True,
                lease.since_s,
            )

    def _interface(self, container: Container) -> str:
        """A container in the state file was created through DS01, whatever its labels say."""
        interface = interface_of(container)
        return "atomic" if interface == "docker" and container.name in self._entries else interface

    def _account(self, container: Container, state_file_user: str = "") -> Account:
        users = self._in.users
        user = user_of(container, users.names) or state_file_user
        uid = self._uids.get(user)
        if not user:
            uid, user = self._in.process_users.get(container.id, (None, ""))
            if uid is None and (uid := users.container_uids.get(container.id)) is not None:
                user = users.names.get(uid, str(uid))
        workload = Workload(
            uid=uid, user=user or None, container_id=container.id, container_name=container.name, image=container.image
        )
        owner, _ = owner_of(Candidate(workload, container.labels), self._in.rules)
        sliced = slice_owner(container.cgroup_parent)
        group = sliced.group if sliced else users.group_of.get(user, "")
        return account_of(owner, user=user, group=group)


def account_of(
    owner: Owner | None, *, user: str = "", group: str = "", namespace: str = "", pod: str = "", job: str = ""
) -> Account:
    if owner is None:
        if not user:
            return UNATTRIBUTED
        return Account("user", user, "", user, user, group, pod, job)
    return Account(owner.kind.value, owner.name, owner.namespace or namespace, owner.id, user, group, pod, job)


def _given_devices(inputs: ClaimInputs) -> tuple[PodDevices, ...]:
    devices = inputs.pod_devices
    if devices is None:
        return ()
    return tuple(pod for pod in devices.allocated if any(device.is_known for device in pod.devices))


def _with_unknown(devices: RequestedDevices) -> tuple[tuple[SlotInfo, Fraction], ...]:
    """A device that this node does not have is still held, as a slot with the name of the device."""
    unknown = (SlotInfo(Slot(name, "", name.replace(":", "."), None, 1), -1) for name in devices.unknown)
    return tuple((info, _WHOLE) for info in (*devices.slots, *unknown))


def _since(container: Container) -> float | None:
    for label in ("ds01.gpu.allocated_at", "ds01.created_at"):
        try:
            return datetime.fromisoformat(container.labels[label]).timestamp()
        except (KeyError, ValueError, OverflowError):
            continue
    return container.started_wall_s or container.created_wall_s
