"""World-VLA-Loop by its mechanisms: near-success data, the closed loop, success in the loss of the dynamics."""

from worldrl.reproductions.mechanisms import reproduction
from worldrl.reproductions.mechanisms.settings import WorldVlaLoopSettings, scales

run, conclude = reproduction.run, reproduction.conclude
METHODS = WorldVlaLoopSettings().methods
SETTINGS = scales(WorldVlaLoopSettings(), tiny="near-goal")
