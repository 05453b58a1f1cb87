"""Plain CUDA programs as clients of the scheduler: which take part, under which name and quota. Pure.

A program is a job: all processes of one job that use GPUs, which are paused and resumed together.

1. `jobs.py` turns the readings of a snapshot into processes and groups them into programs.
2. `exemptions.py` separates the programs that are left alone from those that take part, with the reason.
3. `matching.py` finds the quota rules that apply to a program, and the programs that an operator's target names.
4. `joining.py` decides which of those that take part compete for the GPU now, and which rest.
"""
