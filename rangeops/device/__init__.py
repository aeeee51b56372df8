"""device: where memory lies and work runs; the only importers of cupy and cuda.*."""
