"""EVA's reward on trajectories whose penalties are known, and the guards around it."""

import math

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.rewards.motion.basis import REAL_SHARE, MotionBasis, measure_basis
from worldrl.rewards.motion.executability import (
    PUBLISHED,
    Constants,
    executability,
    huber,
    jerk_spike_rate,
    penalty,
    penalty_terms,
    position_limits,
    refit,
    violation_rate,
)
from worldrl.rewards.motion.limits import JointLimits, piper_bimanual
from worldrl.rewards.motion.moving import block_speed, motion, motion_content, moving_executability

FPS, FRAMES = 16, 49
DT = 1 / FPS
PIPER = piper_bimanual()


def swing(amplitude: float = 0.5, hz: float = 0.25, videos: int = 1) -> torch.Tensor:
    """All fourteen joints swing, float64 ``[N, T, 14]``."""
    t = DT * torch.arange(FRAMES, dtype=torch.float64)
    return (amplitude * torch.sin(2 * math.pi * hz * t))[None, :, None].expand(videos, -1, 14).clone()


def noisy(std: float, videos: int = 200) -> torch.Tensor:
    q = swing(videos=videos)
    return q + std * torch.randn(q.shape, generator=stream(0, "idm noise"), dtype=q.dtype)


def flat(velocity: float, acceleration: float, size: int = 1, **over: tuple[float, ...]) -> JointLimits:
    inf = float("inf")
    fields = {"low": size * (-inf,), "high": size * (inf,), "weight": size * (1.0,)}
    return JointLimits(velocity=size * (velocity,), acceleration=size * (acceleration,), **(fields | over))


def test_a_still_a_short_and_a_steady_trajectory():
    still = torch.full((2, FRAMES, 14), 0.3, dtype=torch.float64)
    assert executability(still, DT, PIPER).tolist() == [10, 10]
    assert executability(still[:, :3], DT, PIPER).tolist() == [0, 0]
    steady = DT * torch.arange(FRAMES, dtype=torch.float64)[None, :, None].expand(1, -1, 14)  # 1 rad/s
    assert executability(steady, DT, PIPER).item() == pytest.approx(10, abs=1e-9)


@pytest.mark.parametrize(
    ("std", "reward"), [(0, 10.0), (0.002, 9.34), (0.005, 7.99), (0.01, 6.60), (0.02, 5.08), (0.05, 3.42), (0.1, 2.37)]
)
def test_reward_under_noise_of_the_inverse_dynamics(std, reward):
    assert executability(noisy(std), DT, PIPER).mean().item() == pytest.approx(reward, abs=0.1)


def test_a_teleport_scores_better_than_noise_of_two_hundredths():
    q = torch.zeros(1, FRAMES, 14, dtype=torch.float64)
    q[:, 24:] = 0.5
    teleport = executability(q, DT, PIPER).item()
    assert teleport == pytest.approx(5.6, abs=0.1)
    assert teleport > executability(noisy(0.02), DT, PIPER).mean().item()


def test_terms_of_a_known_cubic():
    """q = t³ has jerk 6; its first differences are those of the exact polynomial."""
    t = DT * torch.arange(8, dtype=torch.float64)
    limits = flat(velocity=0.1, acceleration=1e6)
    terms = penalty_terms((t**3)[None, :, None], DT, limits)
    assert terms["jerk"][0].tolist() == pytest.approx(5 * [18.0])  # 6²/2
    speed = ((t[1:] ** 3 - t[:-1] ** 3) / DT).numpy()
    assert terms["velocity_bound"][0].tolist() == pytest.approx([max(v - 0.1, 0) ** 2 for v in speed])
    assert (t**3).diff(n=2).div(DT**2).square().div(2).tolist() == pytest.approx(terms["acceleration"][0].tolist())
    assert terms["acceleration_bound"].abs().max() == 0
    expected = 0.5 * 18 + 0.25 * terms["acceleration"].mean() + 2 * terms["velocity_bound"].mean()
    assert penalty((t**3)[None, :, None], DT, limits).item() == pytest.approx(float(expected))


def test_huber_is_smooth_at_its_knee():
    delta = torch.tensor(2.0, dtype=torch.float64)
    x = torch.tensor([0.0, 1.0, -2.0, 3.0], dtype=torch.float64)
    assert huber(x, delta).tolist() == [0, 0.5, 2, 4]


def test_weights_count_in_proportion():
    q = torch.zeros(1, 6, 2, dtype=torch.float64)
    q[0, 3:, 0] = 1.0
    alike, less = flat(1, 1, 2), flat(1, 1, 2, weight=(0.2, 1.0))
    ratio = penalty(q, DT, less) / penalty(q, DT, alike)
    assert ratio.item() == pytest.approx(0.2 / 0.6)
    assert penalty(q, DT, flat(1, 1, 2, weight=(3.0, 3.0))).item() == pytest.approx(penalty(q, DT, alike).item())


def test_it_does_not_matter_when_a_video_teleports():
    q = torch.zeros(2, 20, 14, dtype=torch.float64)
    q[0, 6:], q[1, 12:] = 0.5, 0.5
    video = executability(q, DT, PIPER)
    assert video[0].item() == pytest.approx(video[1].item())


def test_reward_falls_with_noise_and_has_a_gradient():
    rewards = [executability(noisy(std, 8), DT, PIPER).mean().item() for std in (0, 0.003, 0.01, 0.03, 0.1)]
    assert rewards == sorted(rewards, reverse=True)
    q = noisy(0.01, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(executability(q, DT, PIPER).sum(), q)
    step, direction = 1e-6, torch.randn(q.shape, generator=stream(1, "direction"), dtype=q.dtype)
    up, down = (executability((q + s * direction).detach(), DT, PIPER).item() for s in (step, -step))
    assert (gradient * direction).sum().item() == pytest.approx((up - down) / (2 * step), rel=1e-4)


def test_refit_puts_real_decodes_at_the_middle_and_a_teleport_below():
    real = noisy(0.02, 41)
    constants = refit(real, DT, PIPER)
    assert constants.p0 > PUBLISHED.p0
    rewards = executability(real, DT, PIPER, constants=constants)
    assert rewards.median().item() == pytest.approx(10 / math.sqrt(2), abs=1e-6)
    jumped = real.clone()
    jumped[:, 24:] += 0.5
    assert (executability(jumped, DT, PIPER, constants=constants) < rewards).all()


def test_position_limits():
    limits = flat(9, 9, 2, low=(-1.0, -2.0), high=(1.0, 2.0))
    q = torch.zeros(2, 4, 2, dtype=torch.float64)
    q[1, 2, 0], q[1, 3, 1] = 1.5, -2.5
    assert position_limits(q, DT, limits).tolist() == [0, -0.0625]
    harsh = Constants(position_bound=4.0)
    terms = penalty(q, DT, limits, harsh) - penalty(q, DT, limits)
    assert terms.tolist() == pytest.approx([0, 0.25])


def test_artefacts_are_counted():
    q = torch.zeros(1, 10, 1, dtype=torch.float64)
    q[0, 5:] = 1.0  # one jump: 16 rad/s, ±256 rad/s², jerks 4096, -8192, 4096
    limits = flat(velocity=2.0, acceleration=10.0)
    assert violation_rate(q, DT, limits).item() == pytest.approx(0.2)  # frames 5 (v, a) and 6 (a)
    assert jerk_spike_rate(q, DT, limits).item() == pytest.approx(3 / 7)
    assert violation_rate(0 * q, DT, limits).item() == jerk_spike_rate(0 * q, DT, limits).item() == 0


# --- motion ---------------------------------------------------------------------------------------------------------


def test_a_still_video_no_longer_scores_best():
    moving, still = noisy(0.01, 21), noisy(0.01, 21) - swing(videos=21)
    basis = measure_basis(moving, still, DT, PIPER)
    plain = [executability(q, DT, PIPER, constants=basis.constants).mean() for q in (moving, 0 * still)]
    assert plain[1] > plain[0]
    scored = {n: f(q, DT, PIPER).mean() for n, q in (("moving", moving), ("still", 0 * still)) for f in [basis.rewards["moving_executability"]]}  # fmt: skip
    assert scored["still"] == 0
    assert scored["moving"] > 6
    trembling = basis.rewards["moving_executability"](still, DT, PIPER)
    assert trembling.mean() < 0.5


def test_motion_content_of_a_steady_path_and_of_noise():
    limits = flat(velocity=2.0, acceleration=9.0)
    steady = DT * torch.arange(48, dtype=torch.float64)[None, :, None]  # 1 of 2 rad/s
    assert block_speed(steady, DT, limits).tolist() == [
        pytest.approx(5 * [0.5])
    ]  # blocks of eight frames: half a second
    assert motion_content(steady, DT, limits).item() == pytest.approx(5 * 0.5 * 0.5)
    assert motion(steady, DT, limits, reference=2.5).item() == pytest.approx(0.5)
    assert motion(steady, DT, limits, reference=1.0).item() == 1  # more than real motion earns no more
    assert motion(steady, DT, limits, reference=1.0, floor=0.3).item() == pytest.approx(5 * (0.5 - 0.3) * 0.5)
    tremble = 0.02 * torch.randn(400, 48, 1, generator=stream(0, "tremble"), dtype=torch.float64)
    # Block means differ by N(0, 2 σ²/8): their mean size is 0.02 · 0.5 · √(2/π), over half a second, of 2 rad/s.
    noise = block_speed(tremble, DT, limits).mean()
    assert noise.item() == pytest.approx(0.01 * math.sqrt(2 / math.pi), rel=0.05)
    assert motion_content(tremble, DT, limits, floor=float(noise)).mean().item() == pytest.approx(0, abs=1e-9)


def test_who_holds_still_after_a_motion_has_moved_as_much():
    """A plan to the time limit, of which the first third moves, is worth what the motion alone is."""
    moving, limits = swing(videos=1), PIPER
    whole = torch.cat([moving, moving[:, -1:].expand(-1, 2 * FRAMES - 1, -1)], dim=1)  # both end on a whole block
    basis = measure_basis(noisy(0.002, 41), noisy(0.002, 41) - swing(videos=41), DT, limits)
    tremble = 0.002 * torch.randn(whole.shape, generator=stream(3, "tremble"), dtype=whole.dtype)
    kept = {"reference": basis.motion_path, "floor": basis.motion_floor}
    share = motion_content(whole, DT, limits) / motion_content(moving, DT, limits)
    assert share.item() == pytest.approx(1, abs=0.05)
    assert motion(whole + tremble, DT, limits, **kept).item() == 1
    waving = torch.cat([moving, moving.flip(1)], dim=1)
    assert motion(waving, DT, limits, **kept).item() == 1  # no more for moving twice
    assert motion(tremble, DT, limits, **kept).item() < 0.05


def test_all_of_the_motion_term_is_what_alignment_may_not_go_below():
    basis = measure_basis(swing(videos=5), 0 * swing(videos=5), DT, PIPER)
    for share, earned in ((1.0, 1.0), (REAL_SHARE, 1.0), (0.45, 0.5)):
        slower = motion(share * swing(), DT, PIPER, reference=basis.motion_path, floor=basis.motion_floor)
        assert slower.item() == pytest.approx(earned, rel=1e-3)
    assert REAL_SHARE == 0.9


def test_what_does_not_fit_is_refused():
    with pytest.raises(SettingError, match="of 14 coordinates, the trajectory has 7"):
        executability(torch.zeros(1, 9, 7), DT, PIPER)
    with pytest.raises(SettingError, match="at least 4 frames"):
        penalty(torch.zeros(1, 3, 14), DT, PIPER)
    with pytest.raises(SettingError, match="must be positive"):
        moving_executability(torch.zeros(1, 9, 14), DT, PIPER, reference=0.0, floor=0.1)
    with pytest.raises(SettingError, match="at least two frames"):
        motion_content(torch.zeros(1, 1, 14), DT, PIPER)
    with pytest.raises(SettingError, match="one number per coordinate"):
        flat(1, 1, 2, weight=(1.0,))
    with pytest.raises(SettingError, match="must be positive"):
        flat(0, 1)
    with pytest.raises(SettingError, match="lies above"):
        flat(1, 1, low=(2.0,), high=(1.0,))
    with pytest.raises(SettingError, match="three frames"):
        JointLimits.measured([torch.zeros(2, 3)], DT)


# --- bounds ---------------------------------------------------------------------------------------------------------


def test_measured_bounds_hold_real_motion_and_weigh_units_alike():
    q = swing(videos=3)[..., :2].clone()
    q[..., 1] *= 1000  # the same motion in thousandths
    limits = JointLimits.measured(list(q), DT)
    assert violation_rate(q, DT, limits).max() == 0
    assert 1.2 * (0.5 * math.pi / 2) < limits.velocity[0] <= 1.5 * (0.5 * math.pi / 2)
    both, one = penalty(q, DT, limits), penalty(q[..., :1], DT, JointLimits.measured(list(q[..., :1]), DT))
    terms = limits.shares(q) * torch.tensor(limits.acceleration, dtype=q.dtype).square()
    assert terms[0].item() == pytest.approx(terms[1].item())
    assert torch.isfinite(both).all()
    assert torch.isfinite(one).all()
    rest = JointLimits.measured([torch.zeros(5, 1)], DT)
    assert rest.velocity == (0.01,)


def test_a_coordinate_that_is_still_in_the_data_neither_breaks_bounds_nor_outweighs_what_moves():
    q = swing(videos=3)[..., :2].clone()
    q[..., 1] = 1e-6 * q[..., 1]  # a joint that no task turns
    limits = JointLimits.measured(list(q), DT)
    assert limits.velocity[1] == limits.velocity[0]
    decoded = q.clone()
    decoded[..., 1] = 5e-4 * torch.tensor([1.0, -1.0]).repeat(q.shape[1])[: q.shape[1]]  # as an imagined video trembles
    assert violation_rate(decoded, DT, limits).max() == 0
    assert limits.weight[1] == limits.weight[0]


def test_limits_and_basis_survive_json():
    basis = measure_basis(noisy(0.01, 4), 0 * noisy(0.01, 4), DT, PIPER)
    assert MotionBasis.from_json(basis.to_json()) == basis
    assert basis.to_json()["limits"]["low"] == 14 * [None]
    assert set(basis.rewards) == {"executability", "position_limits", "motion", "moving_executability"}
