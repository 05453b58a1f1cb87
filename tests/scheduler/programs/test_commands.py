"""The short name of a command."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.model.names import short_command


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("python3 train.py --epochs 3", "train.py"),
        ("/opt/conda/bin/python3.11 -u -X dev -W ignore /home/a/train.py", "train.py"),
        ("python -m torch.distributed.run train.py", "torch.distributed.run"),
        ("python -c print(1)", "python -c"),
        ("python3", "python3"),
        ("python3 -m", "python3"),
        ("python3 -i", "python3"),
        ("julia --project sim.jl run.jl", "run.jl"),
        ("/usr/local/bin/ollama serve", "ollama"),
        ("./llama-server -m model.gguf", "llama-server"),
        ("pythonista script", "pythonista"),
        ("/", "comm"),
        ("", "comm"),
    ],
)
def test_short_commands(line: str, name: str) -> None:
    assert short_command(line.split(), "comm") == name


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("nginx: worker process", "nginx"),
        ("VLLM::EngineCore", "VLLM::EngineCore"),
        ("/usr/bin/python3 /home/a/train.py --data /mnt/secret", "train.py"),
        ("   ", "comm"),
    ],
)
def test_a_title_that_the_program_wrote(title: str, name: str) -> None:
    assert short_command((title,), "comm") == name


@given(
    st.lists(st.sampled_from(["python3", "-m", "-c", "-X", "/", "", "a/", "x"]), max_size=5), st.sampled_from(["", "p"])
)
def test_any_command_line_has_a_name_or_that_of_the_process(line: list[str], process_name: str) -> None:
    name = short_command(line, process_name)
    assert name or not process_name
