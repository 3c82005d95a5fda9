"""worldrl: improve robot policies inside learned video simulators.

Importing this package stays light: no torch, no mujoco. The rooms and what each may import are
listed in ``docs/architecture.md``; ``tests/test_architecture.py`` keeps the direction.
"""

from worldrl import old_modules as old_modules  # import paths of version 0.1

__version__ = "0.2.0"
