"""Whose turn it is on each GPU: frames (wire), rules (policy), the socket shell (server).

Knows neither Prometheus nor NVML: what it shows is model.sharing, what it learns comes as plain values.
"""
