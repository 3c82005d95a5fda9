"""The ensemble as a world: thousands of rows step in parallel, each predicted by one elite.

``MemberChoice.step`` draws another elite for each row and step (MBPO, MOPO, RAVL). ``MemberChoice.rollout`` keeps one
for the whole rollout (NEUBAY: a member is a hypothesis about the world, which does not change within a rollout).
Each row is evaluated by its own member alone, unless an uncertainty is measured, which needs them all.

Shapes legend: ``M`` members, ``m`` elites, ``B`` rows, ``S`` observation, ``A`` action, ``D = S + 1`` (Δs, r).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from worldrl.core.errors import NonFiniteError, SettingError
from worldrl.core.rng import stream
from worldrl.core.transitions import Outcome, Transitions
from worldrl.world_models.state.config import MemberChoice, Uncertainty, choice
from worldrl.world_models.state.ensemble import Ensemble, balanced_members, check_rows, group_rows, measure
from worldrl.world_models.state.terminations import Termination

ROWS_AT_ONCE = 2048  # rows that all members evaluate at once: 50,000 rows of 128 members would take 5 GB per layer


@dataclass
class EnsembleWorldConfig:
    """How rollouts use the ensemble."""

    member_choice: MemberChoice = MemberChoice.step  # a new elite at each step, or one per rollout.
    uncertainty: Uncertainty = Uncertainty.none  # measured at each step; ``none`` evaluates one member per row only.
    # members that the uncertainty is measured over: ``members`` (MOPO) or ``elites`` (NEUBAY).
    uncertainty_from: str = "members"

    def __post_init__(self) -> None:
        self.member_choice = choice("member_choice", MemberChoice, self.member_choice)
        self.uncertainty = choice("uncertainty", Uncertainty, self.uncertainty)
        if self.uncertainty_from not in ("members", "elites"):
            raise SettingError(f"uncertainty_from must be 'members' or 'elites', got {self.uncertainty_from!r}")


@dataclass(frozen=True)
class EnsembleState:
    """Rows between steps: ``obs`` float32 ``[B, S]``; ``member`` int64 ``[B]``, the row's position among the elites."""

    obs: Tensor
    member: Tensor


class EnsembleWorld:
    """A :class:`~worldrl.core.interfaces.StateWorld` made of a trained :class:`Ensemble`.

    Rollouts begin at ``starts [N, S]``. Uncertainties are in the data's units for ``plain``, its deviations for
    ``layer_norm``.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        starts: Tensor,
        termination: Termination,
        config: EnsembleWorldConfig | None = None,
    ):
        self.ensemble, self.termination = ensemble, termination
        self.config = config or EnsembleWorldConfig()
        self.starts = starts.to(ensemble.device)

    @property
    def obs_size(self) -> int:
        """Numbers ``S`` per observation."""
        return self.ensemble.obs_size

    @property
    def action_size(self) -> int:
        """Numbers ``A`` per action."""
        return self.ensemble.action_size

    @property
    def measures_uncertainty(self) -> bool:
        """Whether outcomes have an uncertainty; otherwise it is zero."""
        return self.config.uncertainty is not Uncertainty.none

    def start(self, index: Tensor, *, generator: torch.Generator) -> tuple[EnsembleState, Tensor]:
        """Begin at recorded rows ``index`` int64 ``[B]``."""
        return self.start_at(self.starts[index.to(self.starts.device)], generator=generator)

    def start_at(self, obs: Tensor, *, generator: torch.Generator) -> tuple[EnsembleState, Tensor]:
        """Begin at any observations ``[B, S]``."""
        member = balanced_members(len(obs), len(self.ensemble.elites), generator=generator).to(obs.device)
        return EnsembleState(obs, member), obs

    def select(self, state: EnsembleState, index: Tensor) -> EnsembleState:
        """Keep the rows of ``index``."""
        return EnsembleState(state.obs[index], state.member[index])

    @torch.no_grad()
    def step(
        self, state: EnsembleState, action: Tensor, *, generator: torch.Generator
    ) -> tuple[EnsembleState, Outcome]:
        """Take ``action [B, A]`` in every row; ActionError: wrong or non-finite; NonFiniteError: the prediction is."""
        check_rows(state.obs, action, self.obs_size, self.action_size)
        member = self._members(state, generator)
        mean, logvar, uncertainty = self._predict(self.ensemble.inputs(state.obs, action), member, generator)
        noise = torch.randn(mean.shape, generator=generator, device=generator.device).to(mean.device)
        change = torch.addcmul(mean, (0.5 * logvar).exp_(), noise)
        change = change * self.ensemble.target_scale + self.ensemble.target_shift
        obs, reward = state.obs + change[:, :-1], change[:, -1]
        if not bool(change.isfinite().all()):
            row = int((~change.isfinite()).any(dim=1).nonzero()[0])
            raise NonFiniteError(
                f"elite {int(member[row])} predicted a non-finite step in row {row}, from observation "
                f"{state.obs[row].tolist()}; shorten the rollouts, truncate them by uncertainty, or train the ensemble longer"
            )
        return EnsembleState(obs, state.member), Outcome(
            obs, reward, self.termination(state.obs, action, obs), uncertainty
        )

    def _members(self, state: EnsembleState, generator: torch.Generator) -> Tensor:
        if self.config.member_choice is MemberChoice.rollout:
            return state.member
        drawn = balanced_members(len(state.obs), len(self.ensemble.elites), generator=generator)
        return drawn.to(state.obs.device)

    def _predict(self, inputs: Tensor, member: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean and log-variance ``[B, D]`` of each row's member, and uncertainty ``[B]``, in network units."""
        elites = self.ensemble.elites
        if not self.measures_uncertainty:
            rows, place = group_rows(member, len(elites))
            mean, logvar = self.ensemble(inputs[rows], elites)
            zero = inputs.new_zeros(len(inputs))
            return mean.flatten(0, 1)[place], logvar.flatten(0, 1)[place], zero
        pieces = zip(inputs.split(ROWS_AT_ONCE), member.split(ROWS_AT_ONCE), strict=True)
        measured = [self._measured(*piece, generator) for piece in pieces]
        mean, logvar, uncertainty = (torch.cat(column) for column in zip(*measured, strict=True))
        return mean, logvar, uncertainty

    def _measured(self, inputs: Tensor, member: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        elites = self.ensemble.elites
        chosen = None if self.config.uncertainty_from == "members" else elites
        count = self.ensemble.config.members if chosen is None else len(elites)
        mean, logvar = self.ensemble(inputs.expand(count, -1, -1), chosen)
        uncertainty = measure(self.config.uncertainty, mean, logvar, generator=generator)
        mover = elites[member] if chosen is None else member
        row = torch.arange(len(inputs), device=inputs.device)
        return mean[mover, row], logvar[mover, row], uncertainty


@torch.no_grad()
def dataset_uncertainty(world: EnsembleWorld, rows: Transitions) -> Tensor:
    """Uncertainty ``[B]`` of recorded steps, on the CPU; SettingError: the world measures none."""
    if not world.measures_uncertainty:
        raise SettingError(
            "uncertainty=none measures nothing on the data; choose uncertainty=epistemic_mean or another"
        )
    device, parts, draws = world.ensemble.device, [], stream(0, "dataset-uncertainty")
    for obs, action in zip(rows.obs.split(ROWS_AT_ONCE), rows.action.split(ROWS_AT_ONCE), strict=True):
        inputs = world.ensemble.inputs(obs.to(device), action.to(device))
        member = torch.zeros(len(inputs), dtype=torch.int64, device=device)  # the moving member does not matter here
        parts.append(world._measured(inputs, member, draws)[2].cpu())
    return torch.cat(parts)


def uncertainty_threshold(uncertainty: Tensor, quantile: float) -> float:
    """Return NEUBAY's threshold: the ζ-quantile of the dataset's uncertainty, linear as numpy's, ζ in [0, 1]."""
    if not 0 <= quantile <= 1:
        raise SettingError(f"quantile must be in [0, 1], got {quantile}")
    ordered = uncertainty.sort().values  # torch.quantile refuses more than 16 million numbers
    place = quantile * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return float(torch.lerp(ordered[below], ordered[above], place - below))
