"""terminal: how a command of this library ends: by its status, and never by a traceback.

A command line is a function without arguments that prints and returns its exit status.  A reader
that goes away (``| head``), a terminal of plain ASCII, Ctrl-C and an error sentence of the library
are no faults of the program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

INTERRUPTED, CLOSED, REFUSED = 130, 141, 2
"""Exit statuses: as a shell has them for Ctrl-C and a closed pipe; a refused argument."""


def run(main: Callable[[], int | None]) -> int:
    """Run a command and return its exit status.

    >>> run(lambda: 3)
    3
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        status = main() or 0
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's own flush
        return CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return REFUSED
