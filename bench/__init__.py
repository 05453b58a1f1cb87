"""Benchmarks: each compares with a peer in one interleaved run and prints one table."""
