"""kernels: what an op declares, and how its kernel, loop and reference are made, built and kept."""
