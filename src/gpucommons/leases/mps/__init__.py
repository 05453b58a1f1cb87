"""MPS daemons for leases: one for each user and GPU, or one for each GPU.

`plan` decides what is started and stopped, and does no I/O; `control` runs nvidia-cuda-mps-control; `supervisor` does
what the plan says. A daemon outlives the agent while a lease uses it: the next agent finds it by its directory.
"""
