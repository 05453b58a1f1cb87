"""Which pids procfs shows, and what to do if they are not the host's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attribution.procfs_tree import add_process, status_text
from gpucommons.model.process_identity import PidFacts, PidScope
from gpucommons.owners.process_identity import pid_view
from gpucommons.sources.host.process_details import read_pid_facts
from needs import needs_program, needs_root

HOST = "pid:[4026531836]"
OTHER = "pid:[4026532201]"

ON_THE_HOST = PidFacts("/proc", status_text("us", 0, (900,)), HOST, HOST, True, "kthreadd")


@pytest.mark.parametrize(
    ("facts", "scope"),
    [
        (ON_THE_HOST, PidScope.HOST),
        (ON_THE_HOST._replace(first_namespace=None), PidScope.HOST),
        (ON_THE_HOST._replace(first_namespace=None, second_name=None), PidScope.HOST),
        # In the host's pid namespace, with the host's /proc mounted elsewhere: hostPID in a pod.
        (PidFacts("/host", status_text("us", 0, (900,)), HOST, None, True, "kthreadd"), PidScope.HOST),
        # The host's /proc mounted, but a pid namespace of our own: two pids.
        (PidFacts("/host", status_text("us", 0, (900, 1)), OTHER, None, True, "kthreadd"), PidScope.NAMESPACE),
        (PidFacts("/host", status_text("us", 0, (900, 1)), OTHER, HOST, True, None), PidScope.NAMESPACE),
        # A kernel that does not report namespaced pids.
        (PidFacts("/proc", "Name:\tus\n", HOST, HOST, True, "kthreadd"), PidScope.HOST),
        (PidFacts("/host", "Name:\tus\n", OTHER, HOST, True, "kthreadd"), PidScope.NAMESPACE),
        # A container of its own.
        (PidFacts("/proc", status_text("us", 0, (1,)), OTHER, OTHER, True, None), PidScope.NAMESPACE),
        (PidFacts("/proc", status_text("us", 0, (1,)), None, None, True, "sh"), PidScope.NAMESPACE),
        # The procfs of a container that is ours and not the host's, seen from the host's namespace.
        (PidFacts("/x", status_text("us", 0, (900, 1)), HOST, OTHER, True, "sh"), PidScope.NAMESPACE),
        # hidepid=2 and not root.
        (PidFacts("/proc", status_text("us", 1000, (900,)), HOST, None, False, None), PidScope.OWN_USER),
        (PidFacts("/nowhere", None, None, None, False, None), PidScope.NONE),
    ],
)
def test_each_case(facts: PidFacts, scope: PidScope) -> None:
    view = pid_view(facts)
    assert view.scope is scope
    assert facts.procfs in view.sentence


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (
            PidFacts("/proc", status_text("us", 0, (1,)), OTHER, OTHER, True, None),
            "only the processes of the agent's container",
        ),
        (PidFacts("/host", status_text("us", 0, (900, 1)), OTHER, HOST, True, None), "in another pid namespace"),
    ],
)
def test_in_a_container_the_reason_and_the_remedy_are_reported(facts: PidFacts, says: str) -> None:
    sentence = pid_view(facts).sentence
    assert says in sentence
    assert "hostPID: true" in sentence


def test_the_procfs_of_this_machine_is_read() -> None:
    facts = read_pid_facts(Path("/proc"))
    assert facts.own_status is not None
    assert facts.first_is_there
    assert pid_view(facts).scope in (PidScope.HOST, PidScope.NAMESPACE)


IN_A_NAMESPACE = """
from pathlib import Path
from gpucommons.owners.process_identity import pid_view
from gpucommons.sources.host.process_details import read_pid_facts
view = pid_view(read_pid_facts(Path("/proc")))
print(view.scope, view.sentence)
"""


@pytest.mark.parametrize(
    ("options", "says"),
    [(("--mount-proc",), "only the processes of the agent's container"), ((), "shows the host's processes, but")],
)
def test_a_real_pid_namespace_is_detected(options: tuple[str, ...], says: str) -> None:
    """With its own /proc, and with the host's still mounted."""
    needs_program("unshare")
    needs_root()
    if pid_view(read_pid_facts(Path("/proc"))).scope is not PidScope.HOST:
        pytest.skip("this machine is itself a pid namespace")
    done = subprocess.run(
        ["unshare", "--pid", "--fork", *options, sys.executable, "-c", IN_A_NAMESPACE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout.startswith("namespace "), done.stderr
    assert says in done.stdout


def test_a_simulated_container_is_read(tmp_path: Path) -> None:
    add_process(tmp_path, 1, name="gpucommons")
    add_process(tmp_path, 2, name="sh")
    (tmp_path / "self").symlink_to("1")
    (tmp_path / "1" / "ns").mkdir()
    (tmp_path / "1" / "ns" / "pid").symlink_to(OTHER)
    facts = read_pid_facts(tmp_path)
    assert (facts.own_namespace, facts.first_namespace, facts.second_name) == (OTHER, OTHER, "sh")
    assert pid_view(facts).scope is PidScope.NAMESPACE


def test_an_empty_procfs_is_read(tmp_path: Path) -> None:
    assert pid_view(read_pid_facts(tmp_path)).scope is PidScope.NONE
