"""``sword``: Sword: training on own frames, a buffer of latents, augmented visual styles."""

from worldrl.reproductions.mechanisms.reproduction import conclude, run
from worldrl.reproductions.mechanisms.settings import SwordSettings, scales

__all__ = ["METHODS", "SETTINGS", "conclude", "run"]

METHODS = SwordSettings().methods
SETTINGS = scales(SwordSettings(), tiny="no-own-frames")
