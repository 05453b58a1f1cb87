"""The host beyond CPU and memory: one file per thing that is read from /proc, /sys or the kernel."""
