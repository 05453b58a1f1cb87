"""The container, pod and user of a process, by the best evidence."""

from attribution.builders import container, identity, pod
from attribution.cgroup_vectors import DASHED, STATIC, UNDERSCORED, C, K
from gpucommons.model.ownership import Place, PodPlace, Workload
from gpucommons.model.workloads import PodReading
from gpucommons.owners.workload import Surroundings, resolve
from gpucommons.rules.placement import PodLabels

HERE = Place("GPU-0", 0)
IN_POD = f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{C}.scope"
IN_DOCKER = f"0::/system.slice/docker-{C}.scope"


def found(cgroup: str, around: Surroundings | None = None, uid: int = 1000) -> Workload:
    return resolve(identity(7, cgroup, uid=uid), HERE, around or Surroundings()).candidate.workload


def steps(cgroup: str, around: Surroundings | None = None) -> str:
    return "\n".join(resolve(identity(7, cgroup), HERE, around or Surroundings()).steps)


def test_a_bare_process() -> None:
    around = Surroundings(user_names={1000: "alice"})
    assert found("0::/", around) == Workload(process_name="python", uid=1000, user="alice")
    assert "running as uid 1000 (alice)" in steps("0::/", around)


def test_a_container_that_is_known() -> None:
    around = Surroundings({C: container(C, "train", "torch:2", owner="alice")})
    resolved = resolve(identity(7, IN_DOCKER), HERE, around)
    assert resolved.candidate.labels == {"owner": "alice"}
    workload = resolved.candidate.workload
    assert (workload.container_id, workload.container_name, workload.image) == (C, "train", "torch:2")


def test_a_container_that_no_runtime_knows() -> None:
    workload = found(IN_DOCKER)
    assert (workload.container_id, workload.container_name) == (C, None)
    assert "no reachable container runtime knows" in steps(IN_DOCKER)


def test_a_container_inside_one_that_is_known() -> None:
    cgroup = f"0::/system.slice/docker-{K}.scope/docker/{C}"
    around = Surroundings({K: container(K, "builder", owner="alice")})
    workload = found(cgroup, around)
    assert (workload.container_id, workload.container_name) == (C, "builder")
    assert "inside docker's container 'builder'" in steps(cgroup, around)


def test_a_pod_by_its_uid() -> None:
    around = Surroundings(pods=PodReading.of([pod(DASHED, main=C)]))
    assert found(IN_POD, around).pod == PodPlace(DASHED, "train-0", "ml", "main")


def test_a_static_pod_by_its_hash() -> None:
    mirrored = pod("mirror-uid", "etcd", "kube-system")._replace(config_hash=STATIC)
    cgroup = IN_POD.replace(UNDERSCORED, STATIC)
    place = found(cgroup, Surroundings(pods=PodReading.of([mirrored]))).pod
    assert place == PodPlace("mirror-uid", "etcd", "kube-system", "")


def test_a_pod_by_its_container_where_the_cgroup_hides_it() -> None:
    around = Surroundings(pods=PodReading.of([pod("uid-9", main=C)]))
    cgroup = f"0::/../cri-containerd-{C}.scope"
    assert found(cgroup, around).pod == PodPlace("uid-9", "train-0", "ml", "main")
    assert "outside the agent's cgroup namespace" in steps(cgroup, around)


def test_a_pod_by_the_labels_of_its_container() -> None:
    labels = {
        "io.kubernetes.pod.uid": DASHED,
        "io.kubernetes.pod.name": "train-0",
        "io.kubernetes.pod.namespace": "ml",
        "io.kubernetes.container.name": "main",
    }
    around = Surroundings({C: container(C)._replace(labels=labels)})
    assert found(IN_POD, around).pod == PodPlace(DASHED, "train-0", "ml", "main")


def test_a_pod_by_the_device_where_only_one_pod_has_it() -> None:
    around = Surroundings(pods_by_place={HERE: (PodLabels("train-0", "ml", "main"),)})
    assert found(IN_POD, around).pod == PodPlace(DASHED, "train-0", "ml", "main")
    assert "to one pod only: ml/train-0" in steps(IN_POD, around)


def test_a_pod_on_a_shared_device_keeps_only_its_uid() -> None:
    """A guess would bill one pod for another."""
    holders = (PodLabels("train-0", "ml", "main", 0), PodLabels("train-1", "ml", "main", 1))
    assert found(IN_POD, Surroundings(pods_by_place={HERE: holders})).pod == PodPlace(DASHED)


def test_two_containers_of_one_pod_on_one_device() -> None:
    holders = (PodLabels("train-0", "ml", "a", 0), PodLabels("train-0", "ml", "b", 1))
    around = Surroundings(pods_by_place={HERE: holders})
    assert found(IN_POD, around).pod == PodPlace(DASHED, "train-0", "ml", "")


def test_a_process_outside_a_pod_does_not_get_the_pod_of_the_device() -> None:
    around = Surroundings(pods_by_place={HERE: (PodLabels("train-0", "ml", "main"),)})
    assert found(IN_DOCKER, around).pod is None


def test_a_rootless_container_belongs_to_its_user() -> None:
    """Inside, the process has an unassigned uid; its cgroup tree belongs to uid 1000."""
    cgroup = f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{C}.scope/container"
    around = Surroundings(user_names={1000: "alice"})
    assert (found(cgroup, around, uid=100999).uid, found(cgroup, around, uid=100999).user) == (1000, "alice")


def test_a_pod_name_in_a_users_cgroup_tree_is_ignored() -> None:
    around = Surroundings(pods=PodReading.of([pod(DASHED, main=C)]))
    resolved = resolve(identity(7, IN_POD.replace("::/", "::/user.slice/user@1000.service/")), HERE, around)
    assert resolved.candidate.workload.pod is None
    assert resolved.candidate.delegated
