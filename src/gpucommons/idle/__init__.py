"""Holders of idle GPUs get a message, a reminder, and in the end an action."""
