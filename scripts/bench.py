"""Benchmarks of speed and memory: ``python scripts/bench.py NAME [options]``; ``NAME --help`` lists the options.

What takes turns in one process, with pinned threads, is hit alike by a busy neighbour; what counts is the CPU time of the
process. Ratios are of the same run on the same machine, with their 95 % interval over rounds.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from worldrl.core.errors import WorldrlError

NAMES = {
    "envs": "control steps and resets per second of the environments",
    "rollout": "imagined frames per second of both dynamics backends",
    "offline": "rollouts and training of the state ensemble beside published code",
    "agents": "RAVL's update beside edge-of-reach's, and compiled or recorded",
    "reading": "what the checks of data sets cost when they are read, beside an earlier version",
    "play": "what a chunk of `worldrl play` costs, and how long a driver waits for it",
    "cluster": "engine=ray beside local processes: equality, overhead, killed nodes",
    "staleness": "GRPO with a process that imagines ahead, at lag 0, 2 and 8",
    "pages": "what large memory pages save in training and imagination",
    "workers": "what LIBERO's workers cost and bring",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    names = "\n".join(f"  {name:10}{summary}" for name, summary in NAMES.items())
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=f"NAME:\n{names}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=NAMES, metavar="NAME")
    name = parser.parse_args(words[:1]).name
    try:
        return import_module(f"bench.{name}").main(words[1:])
    except WorldrlError as error:
        print(f"bench.py {name}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
