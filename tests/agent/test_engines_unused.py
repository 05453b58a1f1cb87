"""Without Slurm, Kubernetes and a driver an agent imports nothing of their packages."""

from pathlib import Path

import pytest

from running import running_agent


@pytest.mark.long
def test_an_agent_without_slurm_kubernetes_and_driver_imports_nothing_of_them(tmp_path: Path) -> None:
    # A kubelet may run on this machine.
    environment = {"PYTHONPROFILEIMPORTTIME": "1", "GPUCOMMONS_PATH_KUBELET_SOCKET": str(tmp_path / "kubelet.sock")}
    with running_agent(environment=environment) as agent:
        agent.stop()
        modules = {line.rpartition("|")[2].strip() for line in agent.lines if line.startswith("import time:")}
    assert "gpucommons.sources.kubernetes.kubelet" in modules, "the list of imports is that of the agent"
    unused = (
        "gpucommons.slurm",
        "gpucommons.kubernetes",
        "grpc",
        "gpucommons.agent.sharing.sharing",
        "gpucommons.sources.nvml.source",
    )
    assert sorted(name for name in modules if name.startswith(unused)) == []
