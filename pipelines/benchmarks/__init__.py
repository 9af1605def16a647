"""Benchmarks: each is a command that prints a table and writes build/bench/NAME.json."""
