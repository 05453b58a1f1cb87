"""Names of processes, cgroups and users are split at newlines only: what else ends a line may be a part of a name."""

from scripts.house_numbers import REPOSITORY

# What reads files of processes and cgroups, or texts that users chose.
ROOMS = ("base", "leases", "owners", "pauser", "scheduler", "slurm", "sources/containers", "sources/people")
# Its own error messages, and a configuration that root has written.
ALLOWED = {"base/http_client.py", "slurm/configuration.py"}


def test_lines_of_files_with_names_end_with_a_newline() -> None:
    source = REPOSITORY / "src/gpucommons"
    files = [path for room in ROOMS for path in sorted((source / room).rglob("*.py"))]
    assert files
    faults = [
        f"{path.relative_to(source)}:{number}: use lines_of() of base/text.py"
        for path in files
        if path.relative_to(source).as_posix() not in ALLOWED
        for number, line in enumerate(path.read_text().split("\n"), 1)
        if ".splitlines(" in line
    ]
    assert not faults, "\n".join(faults)
