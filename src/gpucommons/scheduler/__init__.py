"""Turns on shared GPUs: frames and a client library (protocol), the rules (policy), sockets and thread (service).

It imports neither faces nor sources: its state is `model.sharing`, its input plain values.
"""
