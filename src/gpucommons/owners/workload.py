"""The container, pod, job, unit and user of a process, and how each was found. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from gpucommons.model.ownership import Place, PodPlace, Workload
from gpucommons.model.process_identity import CgroupIdentity, ProcessIdentity
from gpucommons.model.workloads import Container, Pod, PodReading
from gpucommons.owners.owner import Candidate
from gpucommons.rules.placement import PodLabels

_SHORT_ID = 12
# With Docker as the kubelet's runtime, each container has the labels of its pod.
_POD_UID, _POD_NAME = "io.kubernetes.pod.uid", "io.kubernetes.pod.name"
_POD_NAMESPACE, _POD_CONTAINER = "io.kubernetes.pod.namespace", "io.kubernetes.container.name"


class Surroundings(NamedTuple):
    """What is known of the node besides the process. `pods` is None while Kubernetes does not answer."""

    containers: Mapping[str, Container] = {}
    pods: PodReading | None = None
    pods_by_place: Mapping[Place, tuple[PodLabels, ...]] = {}
    user_names: Mapping[int, str] = {}


class Resolved(NamedTuple):
    candidate: Candidate
    steps: tuple[str, ...]


def resolve(identity: ProcessIdentity, place: Place, around: Surroundings) -> Resolved:
    cgroup = identity.cgroup
    container = _container(cgroup, around)
    pod, pod_steps = (None, ()) if cgroup.delegated else _pod(cgroup, container, place, around)
    known_pod = around.pods.by_uid.get(pod.uid) if pod and around.pods else None
    uid = cgroup.uid if cgroup.delegated else identity.uid
    workload = Workload(
        process_name=identity.name,
        uid=uid,
        user=around.user_names.get(uid) if uid is not None else None,
        container_id=cgroup.container_id,
        container_name=container.name if container else None,
        image=container.image or None if container else None,
        pod=pod,
        job=cgroup.job,
        unit=cgroup.unit,
        delegated=cgroup.delegated,
        namespace_owner=identity.user_namespace.owner if identity.user_namespace else None,
    )
    labels = {**(known_pod.labels if known_pod else {}), **(container.labels if container else {})}
    steps = (*_process_steps(identity, workload), *_container_steps(cgroup, container), *pod_steps)
    return Resolved(Candidate(workload, labels, cgroup.delegated), steps)


def _container(cgroup: CgroupIdentity, around: Surroundings) -> Container | None:
    """The innermost container that a runtime knows. A nested container is known only to the inner runtime."""
    ids = (cgroup.container_id, *cgroup.enclosing)
    return next((c for id in ids if id and (c := around.containers.get(id))), None)


def _pod(
    cgroup: CgroupIdentity, container: Container | None, place: Place, around: Surroundings
) -> tuple[PodPlace | None, tuple[str, ...]]:
    """The pod, by the best evidence. The name may have weaker evidence than the UID."""
    ids = tuple(id for id in (cgroup.container_id, *cgroup.enclosing) if id)
    if around.pods and cgroup.pod_uid and (pod := around.pods.find(cgroup.pod_uid)):
        return _known_place(pod, ids), (f"its cgroup names pod {cgroup.pod_uid}: {pod.namespace}/{pod.name}",)
    if around.pods and (pod := next((p for i in ids if (p := around.pods.by_container_id.get(i))), None)):
        return _known_place(pod, ids), (f"Kubernetes lists that container in pod {pod.namespace}/{pod.name}",)
    if container and (name := container.labels.get(_POD_NAME)) and (uid := container.labels.get(_POD_UID)):
        namespace = container.labels.get(_POD_NAMESPACE, "")
        labelled = PodPlace(uid, name, namespace, container.labels.get(_POD_CONTAINER, ""))
        return labelled, (f"the container's labels name pod {namespace}/{name}",)
    if cgroup.pod_uid is None:
        return None, ()
    return _by_device(cgroup.pod_uid, place, around)


def _by_device(pod_uid: str, place: Place, around: Surroundings) -> tuple[PodPlace | None, tuple[str, ...]]:
    if around.pods:
        step = f"its cgroup names pod {pod_uid}, which Kubernetes does not list on this node"
    else:
        step = f"its cgroup names pod {pod_uid}; Kubernetes does not answer, so its name is unknown"
    holders = around.pods_by_place.get(place, ())
    if len({(labels.namespace, labels.pod) for labels in holders}) != 1:
        return PodPlace(pod_uid), (step,)
    only = holders[0]
    container = only.container if len({labels.container for labels in holders}) == 1 else ""
    place_of_pod = PodPlace(pod_uid, only.pod, only.namespace, container)
    return place_of_pod, (step, f"the kubelet allocated this GPU to one pod only: {only.namespace}/{only.pod}")


def _known_place(pod: Pod, container_ids: tuple[str, ...]) -> PodPlace:
    container = next((name for id in container_ids if (name := pod.containers.get(id))), "")
    return PodPlace(pod.uid, pod.name, pod.namespace, container)


def _process_steps(identity: ProcessIdentity, workload: Workload) -> tuple[str, ...]:
    user = f" ({workload.user})" if workload.user else ""
    steps = [f"pid {identity.key.pid} is {identity.name!r}, running as uid {identity.uid}"]
    if identity.cgroup.delegated:
        steps.append(f"its cgroup is in the tree of uid {identity.cgroup.uid}{user}")
    else:
        steps[0] += user
    if len(identity.namespaced_pids) > 1:
        steps.append(f"in its pid namespace it is pid {identity.namespaced_pids[-1]}")
    return tuple(steps)


def _container_steps(cgroup: CgroupIdentity, container: Container | None) -> tuple[str, ...]:
    notes = (cgroup.note,) if cgroup.note else ()
    if cgroup.container_id is None:
        return ("its cgroup names no container", *notes)
    steps = [f"its cgroup names container {cgroup.container_id[:_SHORT_ID]} ({cgroup.runtime})"]
    if container is None:
        steps.append("no reachable container runtime knows that container")
    elif container.id == cgroup.container_id:
        steps.append(f"{container.runtime} calls it {container.name!r}, image {container.image!r}")
    else:
        steps.append(f"it runs inside {container.runtime}'s container {container.name!r}")
    return (*steps, *notes)
