"""Benchmarks: `python -m benchmarks.bench_matmul`; see README.md in this folder."""
