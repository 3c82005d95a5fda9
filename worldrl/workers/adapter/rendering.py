"""Several environments of Gymnasium's MuJoCo renderer in one process, each drawn in its own GL context.

Gymnasium 1.4 makes a viewer's context current only where one renderer has several viewers. Beside another environment
it draws with that one's textures and camera, and an environment that ends deletes the textures of another one.
"""

from __future__ import annotations

import sys
from typing import Any

RENDERER = "gymnasium.envs.mujoco.mujoco_rendering"


def draw_in_own_context() -> None:
    """Let Gymnasium's offscreen viewers make their context current first; nothing where it is not loaded, or has been."""
    viewer: Any = getattr(sys.modules.get(RENDERER), "OffScreenViewer", None)
    if viewer is None or hasattr(viewer, "own_context"):
        return
    draw, release, viewer.own_context = viewer.render, viewer.free, True

    def render(self: Any, *arguments: Any, **named: Any) -> Any:
        self.make_context_current()
        return draw(self, *arguments, **named)

    def free(self: Any) -> None:
        if self.own_context:  # once: close() and the garbage collector both ask for it
            self.own_context = False
            self.make_context_current()
            self.con.free()
            release(self)

    viewer.render, viewer.free = render, free
