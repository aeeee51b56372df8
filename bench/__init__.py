"""Benchmarks: ``python -m bench`` is the main job; ``bench_<topic>.py`` suites of pytest."""
