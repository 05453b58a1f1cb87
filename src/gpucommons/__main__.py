"""`python -m gpucommons` runs the same command as `gpucommons`."""

from gpucommons.cli.main import main

main()
