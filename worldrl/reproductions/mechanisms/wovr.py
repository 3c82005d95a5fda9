"""WoVR by its mechanisms: keyframe starts, masks, co-evolution, an anchor and noise on the memory."""

from worldrl.reproductions.mechanisms import reproduction
from worldrl.reproductions.mechanisms.settings import WovrSettings, scales

run, conclude = reproduction.run, reproduction.conclude
METHODS = WovrSettings().methods
SETTINGS = scales(WovrSettings(), tiny="keyframes")
