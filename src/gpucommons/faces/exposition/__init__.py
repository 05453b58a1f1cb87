"""Families of metrics as plain values, and those values as bytes. Never reads the machine."""
