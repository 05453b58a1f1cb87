"""Metric families as plain values, and their text formats."""
