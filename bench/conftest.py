"""Leave out of ``pytest bench`` what cannot be imported everywhere."""

collect_ignore = ["nets.py"]  # torch modules
