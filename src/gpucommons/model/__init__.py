"""What a node is at an instant: frozen values only. Imports nothing else of gpucommons, does no I/O."""
