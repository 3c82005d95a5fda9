"""Motion content, under which a still video does not score best.

Third parties report that long alignment with EVA's reward drifts to still videos. Motion content is the path length
of a decoded trajectory in units of its velocity bounds. Its positions are averaged over half a second, which removes
most noise of the inverse dynamics. More motion than in real videos earns nothing more.

    m = Σ_blocks mean_d w_d |q̄_{k+1} - q̄_k| / v_max,d / duration,   M = clip((m - floor) / (reference - floor), 0, 1)

Shapes legend: ``N`` videos, ``T`` frames, ``D`` coordinates, ``K`` blocks.
"""

from torch import Tensor

from worldrl.core.errors import SettingError
from worldrl.rewards.motion.executability import PUBLISHED, Constants, executability
from worldrl.rewards.motion.limits import JointLimits

BLOCK_S = 0.5  # seconds of a block


def block_frames(frames: int, dt: float) -> int:
    """Frames of a block: half a second, with at least two blocks in a video."""
    return max(1, min(round(BLOCK_S / dt), frames // 2))


def block_speed(q: Tensor, dt: float, limits: JointLimits) -> Tensor:
    """Mean speed ``[N, K-1]`` between whole blocks of ``q`` ``[N, T, D]``, as a share of the velocity bounds.

    Raises SettingError: fewer than two frames.
    """
    if q.shape[1] < 2:
        raise SettingError(f"motion needs at least two frames, got {q.shape[1]}")
    size = block_frames(q.shape[1], dt)
    block = q[:, : q.shape[1] // size * size].unflatten(1, (-1, size)).mean(dim=2)  # [N, K, D]
    speed = block.diff(dim=1).abs() / (size * dt) / limits.tensor("velocity", q)
    return (limits.shares(q) * speed).mean(dim=-1)


def motion_content(q: Tensor, dt: float, limits: JointLimits, *, floor: float = 0.0) -> Tensor:
    """Motion above the noise speed ``floor``, ``[N]``, in seconds at the velocity bounds."""
    seconds = block_frames(q.shape[1], dt) * dt
    return ((block_speed(q, dt, limits) - floor) * seconds).sum(dim=1)


def motion(q: Tensor, dt: float, limits: JointLimits, *, reference: float, floor: float = 0.0) -> Tensor:
    """M of decoded positions ``[N, T, D]``, ``[N]`` in [0, 1]; SettingError: ``reference`` is not positive.

    ``reference`` is the content that earns everything, ``floor`` the speed decoded from still videos (shares of
    bounds).
    """
    if not reference > 0:
        raise SettingError(f"motion: reference {reference} must be positive: measure it on real videos")
    return (motion_content(q, dt, limits, floor=floor) / reference).clamp(0, 1)


def moving_executability(
    q: Tensor,
    dt: float,
    limits: JointLimits,
    *,
    reference: float,
    floor: float = 0.0,
    constants: Constants = PUBLISHED,
) -> Tensor:
    """R M, ``[N]``: EVA's reward times the motion content, under which a still video scores 0."""
    moving = motion(q, dt, limits, reference=reference, floor=floor)
    return executability(q, dt, limits, constants=constants) * moving
