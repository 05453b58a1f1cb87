"""The pauser: a process of its own that pauses CUDA programs from outside, and makes sure that all of them run again.

A pause survives the process that made it, so these rules hold whatever dies or hangs:

1. A program is written into the record (record.py) before it is paused, and removed after it runs again.
2. The pauser resumes everything when the agent's connection ends, when it is asked to stop, and when it starts: then
   for what the record holds. A second process, the watchdog, does so when the pauser is killed, or silent for 2 s.
3. A program is paused for at most `max_pause_s` after the agent asked for it. The agent may ask again (keep), as it
   does for programs on a GPU that another user has leased; an agent that hangs does not. Only a parked program, whose
   GPU memory is in host memory, stays so: restoring it needs room on the GPU, which only the agent can judge.
4. Every driver call has a thread of its own: one that hangs never keeps another program paused. A program that its user
   has stopped gets no call, since that would hang; it is resumed when it is continued.
5. A program is (pid, start time). A pid that was reused is another program and is not paused.

`server.py` runs as `python -m gpucommons.pauser`; the agent talks to it through `client.py` and never loads libcuda.
"""
