"""Typed configuration of the EDM U-Net; it travels inside the video world model's (``config``)."""

from dataclasses import dataclass

from worldrl.core.errors import SettingError


@dataclass
class UNetConfig:
    """EDM U-Net; the defaults are DIAMOND's."""

    channels: int = 64  # of every level.
    levels: int = 4  # resolutions, each half of the previous one.
    blocks: int = 2  # residual blocks per level on the way down; one more on the way up.
    condition: int = 256  # width of the embedding of noise level and actions.
    heads: int = 8  # attention heads at the lowest resolution, and of the success and gripper head.
    # standard deviation of the latents; 0.5 for pixels in [-1, 1], about 1 for the patch codec's.
    sigma_data: float = 0.5
    offset_noise: float = 0.3  # standard deviation of the noise that all places of a channel share, in training.
    log_sigma_mean: float = -0.4  # mean of the training levels' logarithm.
    log_sigma_std: float = 1.2  # its standard deviation.
    sigma_low: float = 2e-3  # lowest level, in training and of the sampler.
    sigma_high: float = 20.0  # highest level in training.
    sigma_start: float = 5.0  # level at which sampling starts.
    rho: float = 7.0  # density of the sampler's levels at the lower end.
    sampling_steps: int = 3  # steps of the sampler for each frame.
    order: int = 1  # 1 for Euler's steps, 2 for Heun's: one more evaluation for every step but the last.

    def __post_init__(self) -> None:
        if self.channels > 32 and self.channels % 32:
            raise SettingError(f"dynamics.unet.channels above 32 must be a multiple of 32, got {self.channels}")
        if self.channels % self.heads:
            raise SettingError(f"dynamics.unet.heads must divide channels {self.channels}, got {self.heads}")
        for name in ("levels", "blocks", "sampling_steps"):
            if getattr(self, name) < 1:
                raise SettingError(f"dynamics.unet.{name} must be at least 1, got {getattr(self, name)}")
        if not (0 < self.sigma_low < self.sigma_start and self.sigma_low < self.sigma_high):
            raise SettingError(
                "dynamics.unet.sigma_low must be above 0 and below sigma_start and sigma_high, got "
                f"{self.sigma_low}, {self.sigma_start}, {self.sigma_high}"
            )
        if self.order not in (1, 2):
            raise SettingError(f"dynamics.unet.order must be 1 (Euler) or 2 (Heun), got {self.order}")
