"""Deterministic simulations of the sources, for a machine without GPUs. Never reads the machine."""
