"""Sword by its mechanisms: training on own frames, a buffer of latents, augmented visual styles."""

from worldrl.reproductions.mechanisms import reproduction
from worldrl.reproductions.mechanisms.settings import SwordSettings, scales

run, conclude = reproduction.run, reproduction.conclude
METHODS = SwordSettings().methods
SETTINGS = scales(SwordSettings(), tiny="no-own-frames")
