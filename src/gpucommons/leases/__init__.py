"""Leases: a program gets GPUs of its own for as long as it runs, or waits in one queue.

`policy` decides and does no I/O, `protocol` has the lines of the socket, `service` serves it and keeps the record.
"""
