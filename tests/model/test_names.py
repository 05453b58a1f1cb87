"""Names of processes and clients: finished, printable, and never empty."""

import pytest

from gpucommons.model.names import nvshare_client_name, process_name


@pytest.mark.parametrize(
    ("owner", "command", "pids", "name"),
    [
        ("alice", "train.py", [4711], "alice · train.py (pid 4711)"),
        ("alice", "train.py", [4711, 4712], "alice · train.py (pid 4711 and 1 more)"),
        ("uid 1000", "", [4711], "uid 1000 (pid 4711)"),
        ("uid 1000", "", [], "uid 1000 (pid unknown)"),
        ("alice", "\x1b[31m\n", [1], "alice · \\x1b[31m\\n (pid 1)"),
        ("alice", "x" * 100, [1], f"alice · {'x' * 63}… (pid 1)"),
    ],
)
def test_the_name_of_a_process(owner: str, command: str, pids: list[int], name: str) -> None:
    assert process_name(owner, command, pids) == name


@pytest.mark.parametrize(
    ("pod", "namespace", "name"),
    [
        ("train-0", "ml", "ml/train-0"),
        ("train-0", "", "train-0"),
        ("train-0", "none", "train-0"),
        ("none", "none", "alice · train.py (pid 1)"),
        ("", "", "alice · train.py (pid 1)"),
        ("none", "ml", "alice · train.py (pid 1)"),
        ("a\x1b[2J", "ml", "ml/a\\x1b[2J"),
    ],
)
def test_the_name_of_a_client(pod: str, namespace: str, name: str) -> None:
    assert nvshare_client_name(pod, namespace, "alice · train.py (pid 1)") == name
