"""``wovr``: WoVR: keyframe starts, masks, co-evolution, an anchor and noise on the memory."""

from worldrl.reproductions.mechanisms.reproduction import conclude, run
from worldrl.reproductions.mechanisms.settings import WovrSettings, scales

__all__ = ["METHODS", "SETTINGS", "conclude", "run"]

METHODS = WovrSettings().methods
SETTINGS = scales(WovrSettings(), tiny="keyframes")
