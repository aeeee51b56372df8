"""Benchmarks: ``python -m bench`` is the main job; ``bench_<topic>.py`` are pytest-benchmark suites."""
