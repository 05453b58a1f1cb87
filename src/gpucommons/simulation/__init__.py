"""Deterministic stand-ins for the sources, for a laptop without a GPU. Never reads the machine."""
