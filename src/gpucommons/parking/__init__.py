"""Parking: the GPU memory of idle programs is moved to host memory, and back when they go on."""
