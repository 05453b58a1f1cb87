"""Durable accounts of GPU-seconds, byte-seconds and joules per owner, and the event log."""
