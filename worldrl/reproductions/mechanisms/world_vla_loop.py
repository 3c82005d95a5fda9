"""``world-vla-loop``: World-VLA-Loop: near-success data, the closed loop, and success predicted together with images."""

from worldrl.reproductions.mechanisms.reproduction import conclude, run
from worldrl.reproductions.mechanisms.settings import WorldVlaLoopSettings, scales

__all__ = ["METHODS", "SETTINGS", "conclude", "run"]

METHODS = WorldVlaLoopSettings().methods
SETTINGS = scales(WorldVlaLoopSettings(), tiny="near-goal")
