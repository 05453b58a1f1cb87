"""The entry point of `gpucommons` and of `python -m gpucommons`.

Slurm runs its hooks for every job: they are started here, without the rest of the command line, in a tenth of its time.
"""

import sys


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "slurm" and sys.argv[2] in ("prolog", "epilog", "task-prolog"):
        from gpucommons.slurm.hooks import main as run_hook

        run_hook(sys.argv[2:])
        return
    from gpucommons.base.loading import loading

    with loading():
        from gpucommons.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
