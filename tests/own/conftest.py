"""The user's file is imported by the users' processes alone: it would enter this registry."""

collect_ignore = ["tiger.py"]
