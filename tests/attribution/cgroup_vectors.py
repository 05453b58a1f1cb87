"""Lines of /proc/PID/cgroup from real systems, and the expected result of each."""

from gpucommons.model.process_identity import CgroupIdentity

C = "3f1a5c7e9b2d4f60" * 4
K = "0b8d6e4f2a1c3e57" * 4
DASHED = "2c48913c-b29f-11e7-9350-020968147796"
UNDERSCORED = DASHED.replace("-", "_")
STATIC = "d0b4e1c5a69f4d2e8c7b3a1f0e9d8c7b"

POD_HIDDEN = "the pod's part of the cgroup path is outside the agent's cgroup namespace"

BESTEFFORT_SLICES = f"kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice"
BURSTABLE_SLICES = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice"
KIND_SLICES = (
    "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
    f"kubelet-kubepods-besteffort-pod{UNDERSCORED}.slice"
)
V1_HOST = f"""12:hugetlb:/kubepods/burstable/pod{DASHED}/{C}
11:memory:/kubepods/burstable/pod{DASHED}/{C}
10:cpu,cpuacct:/kubepods/burstable/pod{DASHED}/{C}
9:rdma:/
1:name=systemd:/kubepods/burstable/pod{DASHED}/{C}
0::/system.slice/containerd.service
"""
V1_DOCKER_HOST = f"""11:memory:/docker/{C}
4:freezer:/docker/{C}
1:name=systemd:/docker/{C}
0::/system.slice/containerd.service
"""


def pod(runtime: str, qos: str | None, uid: str = DASHED) -> CgroupIdentity:
    return CgroupIdentity(runtime=runtime, container_id=C, pod_uid=uid, qos=qos)


def container(runtime: str, uid: int | None = None, delegated: bool = False) -> CgroupIdentity:
    return CgroupIdentity(runtime=runtime, container_id=C, uid=uid, delegated=delegated)


NESTED_IN_K = CgroupIdentity(runtime="containerd", container_id=C, pod_uid=DASHED, qos="besteffort", enclosing=(K,))
NESTED_IN_K_V1 = CgroupIdentity(runtime="kubelet", container_id=C, pod_uid=DASHED, qos="burstable", enclosing=(K,))

VECTORS: dict[str, tuple[str, CgroupIdentity]] = {
    "1 docker v1": (f"11:memory:/docker/{C}", container("docker")),
    "2 docker v2": (f"0::/system.slice/docker-{C}.scope", container("docker")),
    "3 kubelet cgroupfs burstable": (
        f"5:cpuset:/kubepods/burstable/pod{DASHED}/{C}",
        pod("kubelet", "burstable"),
    ),
    "4 kubelet cgroupfs guaranteed": (f"5:cpuset:/kubepods/pod{DASHED}/{C}", pod("kubelet", "guaranteed")),
    "5 containerd systemd burstable": (
        f"0::/{BURSTABLE_SLICES}/cri-containerd-{C}.scope",
        pod("containerd", "burstable"),
    ),
    "6 containerd systemd guaranteed": (
        f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{C}.scope",
        pod("containerd", "guaranteed"),
    ),
    "7 cri-o": (f"0::/{BURSTABLE_SLICES}/crio-{C}.scope/container", pod("cri-o", "burstable")),
    "8 cri-dockerd": (
        f"0::/kubepods.slice/{BESTEFFORT_SLICES}/docker-{C}.scope",
        pod("docker", "besteffort"),
    ),
    "9 containerd, unexpanded slice": (
        f"0::/system.slice/containerd.service/kubepods-besteffort-pod{UNDERSCORED}.slice:cri-containerd:{C}",
        pod("containerd", "besteffort"),
    ),
    "10 kind in docker v2": (
        f"0::/system.slice/docker-{K}.scope/{KIND_SLICES}/cri-containerd-{C}.scope",
        NESTED_IN_K,
    ),
    "11 kind in docker v1": (
        f"11:memory:/docker/{K}/kubelet/kubepods/burstable/pod{DASHED}/{C}",
        NESTED_IN_K_V1,
    ),
    "12 private cgroup namespace": (
        f"0::/../../{BESTEFFORT_SLICES}/cri-containerd-{C}.scope",
        pod("containerd", "besteffort"),
    ),
    "13 the reader's own pod": (
        f"0::/../cri-containerd-{C}.scope",
        CgroupIdentity(runtime="containerd", container_id=C, note=POD_HIDDEN),
    ),
    "14 static pod": (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-{C}.scope",
        pod("containerd", "burstable", STATIC),
    ),
    "15 podman as root": (f"0::/machine.slice/libpod-{C}.scope/container", container("podman")),
    "16 podman rootless": (
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{C}.scope/container",
        container("podman", uid=1000, delegated=True),
    ),
    "17 slurm v1": ("8:memory:/slurm/uid_1000/job_4242/step_0/task_0", CgroupIdentity(job="4242", uid=1000)),
    "17 slurm v1, by node": (
        "8:memory:/slurm_node7/uid_1000/job_4242/step_0/task_0",
        CgroupIdentity(job="4242", uid=1000),
    ),
    "18 slurm v2": (
        "0::/system.slice/slurmstepd.scope/job_4242/step_0/user/task_0",
        CgroupIdentity(job="4242"),
    ),
    "18 slurm v2, by node": (
        "0::/system.slice/node7_slurmstepd.scope/job_4242/step_0/user/task_0",
        CgroupIdentity(job="4242"),
    ),
    "19 slurm sluid": (
        "0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0",
        CgroupIdentity(job="s5K1KKYAYG5D00"),
    ),
    "20 v1 host, pod": (V1_HOST, pod("kubelet", "burstable")),
    "20 v1 host, docker": (V1_DOCKER_HOST, container("docker")),
    "21 no cgroup": ("0::/", CgroupIdentity()),
    "21 login session": (
        "0::/user.slice/user-1000.slice/session-3.scope",
        CgroupIdentity(uid=1000, scope="session-3.scope"),
    ),
    "22 systemd unit": (
        "0::/system.slice/jupyterhub-alice.service",
        CgroupIdentity(unit="jupyterhub-alice.service", scope="jupyterhub-alice.service"),
    ),
}
