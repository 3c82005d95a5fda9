"""``worldrl`` and ``python -m worldrl``."""

import sys

from worldrl.core.memory_pages import start_with_large_pages


def command() -> int:
    """Run the command line in a process with large memory pages; returns the exit code."""
    start_with_large_pages()
    from worldrl.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(command())
