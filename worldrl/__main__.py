"""``python -m worldrl``: the same as ``worldrl``."""

import sys

from worldrl.cli import main

sys.exit(main())
