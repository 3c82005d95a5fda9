"""``TokenPolicy``: image, instruction and commanded pose to a chunk of action tokens in one forward pass.

Parallel decoding after OpenVLA-OFT ("Fine-Tuning Vision-Language-Action Models: Optimizing Speed and Success"): the
``L × A`` tokens of a chunk are independent given the observation, so its log-probability is exact::

    log π(token | obs) = Σ_{l,a} log softmax(logits[l, a] / temperature)[token[l, a]]

A policy is of one robot: the specification of its ``A`` numbers (``actions``) comes from the demonstrations.

Shapes legend: ``B`` rows, ``L`` chunk, ``A`` numbers of an action and of a command, ``Y X`` pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec
from worldrl.core.errors import SettingError
from worldrl.core.image_fit import Fit, ImageFit
from worldrl.core.interfaces import Policy
from worldrl.core.observation import (
    IMAGE,
    MEASURED,
    NOT_OBSERVED,
    OBSERVATION,
    STATE,
    ObservationSpec,
    check_inputs,
    further,
)
from worldrl.core.storage.artefact import Shared, read_artefact, write_artefact
from worldrl.core.storage.typed import from_plain
from worldrl.core.storage.weights import fitting, load_weights
from worldrl.core.training.optimizer import adamw
from worldrl.core.types import Chunk, CorrelatedNoise, Likelihood, PolicyObs
from worldrl.nn.blocks import Perceptron
from worldrl.nn.text import InstructionEncoder
from worldrl.nn.vision import ImageEncoder, Points
from worldrl.policies.exploration import refuse_displacement, uniform_draws
from worldrl.policies.observation import check_obs
from worldrl.policies.statistics import PolicyStatistics
from worldrl.policies.token.tokens import allowed_bins, decode, inverse_cdf
from worldrl.policies.token.waypoint import Augmented, Waypoint, WaypointHead, arm_alone, closing, way_features

FORBIDDEN = -1e9  # logit of a forbidden bin: probability exactly 0, and unlike -inf no NaN in 0 × log 0


@dataclass
class TokenPolicyConfig:
    """Size of a :class:`TokenPolicy`."""

    image_size: int = 64  # pixels per side, a multiple of 8.
    fit: Fit = Fit.refuse  # how recorded images of another size get this one; refuse is an error.
    chunk_length: int = 8  # control steps per chunk.
    bins: int = 33  # values per action dimension.
    width: int = 48  # channels of the image encoder.
    blocks: int = 2  # residual blocks of the image encoder.
    keypoints: int = 8  # keypoints of the image encoder.
    text_width: int = 64  # size of the instruction vector.
    hidden: int = 256  # width of the decoder.
    # images that it observes, ``image`` (the main camera's) first, then for example ``wrist_image``.
    cameras: list[str] = field(default_factory=lambda: [IMAGE])
    state: str = NOT_OBSERVED  # ``measured`` also observes the measured state; ``none`` does not.
    # whether a head reads a waypoint from the images, and the decoder receives the way to it instead of the images
    # (``token/waypoint.py``).
    waypoint: bool = True

    def __post_init__(self) -> None:
        check_inputs(self.cameras, self.state, "policy.")
        for name, least in (
            ("chunk_length", 1),
            ("bins", 2),
            ("width", 1),
            ("keypoints", 1),
            ("hidden", 1),
            ("blocks", 0),
            ("text_width", 1),
        ):
            if getattr(self, name) < least:
                raise SettingError(f"policy.{name}: must be at least {least}, got {getattr(self, name)}")
        if self.image_size < 8 or self.image_size % 8:
            raise SettingError(f"policy.image_size: must be a multiple of 8, got {self.image_size}")

    @property
    def images(self) -> ImageFit:
        """Its images, and how others become them."""
        return ImageFit(self.image_size, self.fit)


ACTIONS = "actions"  # key of a policy's :class:`ActionSpec` in its ``config.json``
TRAINED_ON = "trained_on"  # key of what it learned from


def stored_actions(config: Mapping[str, Any]) -> ActionSpec:
    """Return what the numbers of a saved policy's actions are; folders older than the key hold LIBERO's seven."""
    return ActionSpec.from_json(config[ACTIONS]) if ACTIONS in config else TOOL_ACTIONS


def reads_waypoint(policy: Policy) -> bool:
    """Say whether a policy steers to a waypoint."""
    return isinstance(policy, TokenPolicy) and policy.config.waypoint


class TokenPolicy(Shared, nn.Module):
    """A chunked, language-conditioned image policy (:class:`worldrl.core.interfaces.TrainablePolicy`).

    ``trained_on`` is its training data in plain JSON values, None if unknown. SettingError: ``statistics`` is missing.
    """

    action_low: Tensor
    action_high: Tensor
    command_mean: Tensor
    command_std: Tensor
    state_mean: Tensor
    state_std: Tensor
    needs_noise, n_obs_steps = False, 1

    def __init__(self, config: TokenPolicyConfig, statistics: PolicyStatistics) -> None:
        super().__init__()
        if not isinstance(statistics, PolicyStatistics):
            raise SettingError(
                f"statistics: must be PolicyStatistics, got {statistics!r}; "
                "compute them with PolicyStatistics.from_episodes(demonstrations)"
            )
        self.config, self.chunk_length, self.actions = config, config.chunk_length, statistics.actions
        self.trained_on: dict[str, Any] | None = None
        self.more = further(config.cameras, config.state)
        """Inputs besides image, command and instruction."""
        measured = config.state == MEASURED
        for name, tensor in statistics.tensors(state=measured).items():
            self.register_buffer(name, tensor)
        self.instruction_encoder = InstructionEncoder(config.text_width)
        sizes = {"width": config.width, "blocks": config.blocks, "keypoints": config.keypoints}
        made = partial(ImageEncoder, config.text_width, **sizes, place=not config.waypoint)
        self.image_encoder = encoder = made()
        self.further_encoders = nn.ModuleList([made() for _ in config.cameras[1:]])
        size, state = self.actions.size, len(self.state_mean) if measured else 0
        cameras = len(config.cameras)
        inputs = cameras * encoder.out_width + config.text_width + size + 1 + state
        self.waypoint_head = None
        if config.waypoint:
            phase = (2 if measured else 1) * len(self.actions.grippers)
            seen = config.keypoints, cameras * encoder.out_width
            self.waypoint_head = WaypointHead(self.actions, seen, config.text_width, phase, config.hidden)
            inputs = config.text_width + phase + 2 * size + (size + state if self.actions.targets_pose else 0)
        self.decoder = Perceptron(inputs, config.hidden, config.chunk_length * size * config.bins)

    @property
    def device(self) -> torch.device:
        """Device of the weights; observations are moved there."""
        return self.action_low.device

    @property
    def observation(self) -> ObservationSpec:
        """What it observes."""
        size, measured = self.config.image_size, self.config.state == MEASURED
        return ObservationSpec.of(self.actions, self.config.cameras, (size, size), state=measured)

    @property
    def encoders(self) -> list[ImageEncoder]:
        """The image encoder of each camera."""
        return [self.image_encoder, *cast("list[ImageEncoder]", list(self.further_encoders))]

    def logits(self, obs: PolicyObs, *, augmented: Augmented | None = None) -> Tensor:
        """Logits ``[B, L, A, bins]``, forbidden bins masked; ``augmented``: what training did to the observation."""
        return self.predict(obs, augmented=augmented)[0]

    def predict(
        self, obs: PolicyObs, *, augmented: Augmented | None = None, displaced: Tensor | None = None
    ) -> tuple[Tensor, Waypoint | None]:
        """:meth:`logits`, and the waypoint; None for a policy without one.

        ``displaced`` ``[B, A]`` is added to the way, except to what it says of grippers.
        """
        embedded, waypoint = self._embed(obs, augmented, displaced)
        out = self.decoder(embedded).unflatten(1, (self.chunk_length, self.actions.size, self.config.bins))
        allowed = allowed_bins(self.action_low, self.action_high, self.config.bins)
        return out.masked_fill(~allowed, FORBIDDEN), waypoint

    def embed(self, obs: PolicyObs) -> Tensor:
        """What the decoder receives of an observation, ``[B, d]``."""
        return self._embed(obs, None, None)[0]

    def log_softmax(self, obs: PolicyObs, *, temperature: float = 1.0, displaced: Tensor | None = None) -> Tensor:
        """Log-probability of every bin ``[B, L, A, bins]``; ``displaced``: see :meth:`predict`."""
        return self._tempered(obs, temperature, displaced).log_softmax(dim=-1)

    @torch.no_grad()
    def act(
        self,
        obs: PolicyObs,
        *,
        generators: Sequence[torch.Generator] | None,
        temperature: float = 1.0,
        correlated_noise: CorrelatedNoise | None = None,
    ) -> Chunk:
        """Choose a chunk for each row, on the policy's device; without ``generators`` (CPU streams) greedily.

        ``logp`` is that of the logits divided by ``temperature``, the waypoint as displaced. ``correlated_noise``: the
        rows' constant part of the exploration; None makes draws independent. Raises ObservationError: an observation
        breaks a rule; SettingError: not ``B`` generators, or a temperature of 0 or less.
        """
        if self.waypoint_head is None:
            refuse_displacement(correlated_noise)
        displaced = None if correlated_noise is None else correlated_noise.waypoint
        logp = self.log_softmax(obs, temperature=temperature, displaced=displaced)
        token = logp.argmax(dim=-1) if generators is None else self._sample(logp, generators, correlated_noise)
        chosen = logp.gather(-1, token[..., None]).squeeze(-1)
        return Chunk(action=self.decode(token), token=token, logp=chosen)

    def log_prob(self, obs: PolicyObs, token: Tensor, *, temperature: float = 1.0) -> Tensor:
        """Log-probability ``[B, L, A]`` of tokens, with gradient; SettingError: other shape, type or range."""
        return self.likelihood(obs, token, temperature=temperature).logp

    def likelihood(self, obs: PolicyObs, token: Tensor, *, temperature: float = 1.0) -> Likelihood:
        """:meth:`log_prob`, with the logits divided by the temperature: the tokens' whole distribution."""
        self._check_token(token, len(obs.instruction))
        logits = self._tempered(obs, temperature)
        logp = logits.log_softmax(dim=-1)
        return Likelihood(logp.gather(-1, token.to(self.device)[..., None]).squeeze(-1), logits)

    def make_optimizer(self, learning_rate: float, weight_decay: float) -> Optimizer:
        """Make the AdamW of its weights."""
        return adamw(self, learning_rate, weight_decay)

    def entropy(self, obs: PolicyObs, *, temperature: float = 1.0) -> Tensor:
        """Entropy of each token's distribution in nats, ``[B, L, A]``, with gradient."""
        logp = self.log_softmax(obs, temperature=temperature)
        return -(logp.exp() * logp).sum(dim=-1)

    def decode(self, token: Tensor) -> Tensor:
        """Map tokens ``[..., A]`` to actions in the robot's range."""
        low, high = (torch.from_numpy(bound).to(self.device) for bound in self.actions.bounds)
        return decode(token, self.action_low, self.action_high, self.config.bins, bounds=(low, high))

    def save(self, folder: Path, *, parents: Sequence[Mapping[str, str]] = ()) -> None:
        """Write ``config.json``, ``model.safetensors`` and the manifest in place of an older artefact."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        known = {} if self.trained_on is None else {TRAINED_ON: self.trained_on}
        contract = {ACTIONS: self.actions.to_json(), OBSERVATION: self.observation.to_json()}
        config = {**asdict(self.config), **contract, **known}
        write_artefact(folder, kind="policy", config=config, tensors=tensors, parents=parents)

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> "TokenPolicy":
        """Read a saved policy in evaluation mode; ArtefactError: the folder is missing, damaged, or of another kind."""
        artefact = read_artefact(folder, kind="policy")
        apart = (ACTIONS, OBSERVATION, TRAINED_ON)
        sizes = {name: value for name, value in artefact.config.items() if name not in apart}
        with fitting(artefact):
            statistics = PolicyStatistics.from_tensors(artefact.tensors, stored_actions(artefact.config), folder)
            sizes.setdefault("waypoint", False)  # folders older than the key have none
            policy = cls(from_plain(TokenPolicyConfig, sizes, where="config"), statistics)
            policy.observation.require_stored(artefact.config, folder)
            load_weights(policy, artefact)
            policy.trained_on = artefact.config.get(TRAINED_ON)
        return policy.to(device).eval()

    def _embed(
        self, obs: PolicyObs, augmented: Augmented | None, displaced: Tensor | None
    ) -> tuple[Tensor, Waypoint | None]:
        size = len(self.state_mean) if STATE in self.more else 0
        check_obs(obs, self.config.image_size, self.actions.size, more=self.more, state_size=size)
        text = self.instruction_encoder(obs.instruction)
        images = self._points(obs, text, augmented)
        if self.waypoint_head is None:
            return torch.cat(self._all_seen(obs, text, images, augmented), dim=1), None
        phase = self._phase(obs)
        waypoint = self.waypoint_head(images, text, torch.cat(phase, dim=1), cloning=augmented is not None)
        way = waypoint.pose - (obs.command.to(text) - self.command_mean) / self.command_std
        way = way if augmented is None else way + augmented.noise.to(way)
        way = way if displaced is None else way + arm_alone(displaced.to(way), self.actions)
        parts = [text, *phase, way_features(way), *(self._pose(obs) if self.actions.targets_pose else [])]
        return torch.cat(parts, dim=1), waypoint

    def _all_seen(
        self, obs: PolicyObs, text: Tensor, images: Sequence[Points], augmented: Augmented | None
    ) -> list[Tensor]:
        """What the decoder of a policy without a waypoint receives."""
        command, *state = self._pose(obs)
        seen = command.new_ones(len(command), 1) if augmented is None else augmented.command_seen.to(command)[:, None]
        first, *others = (points.flat for points in images)
        return [first, text, command * seen, seen, *others, *(value * seen for value in state)]

    def _pose(self, obs: PolicyObs) -> list[Tensor]:
        """Return the commanded pose, and the measured state where it is observed, in standard deviations."""
        pose = [self._scaled(obs.command, self.command_mean, self.command_std)]
        if STATE in self.more:
            pose.append(self._scaled(obs.more[STATE], self.state_mean, self.state_std))
        return pose

    def _phase(self, obs: PolicyObs) -> list[Tensor]:
        """Return how far each gripper is commanded to close, and is measured to be open, ``[B, G]`` each."""
        phase = [closing(obs.command.to(self.command_mean), self.actions)]
        if STATE in self.more:
            opening = self.actions.opening(obs.more[STATE].cpu().numpy()) / self.actions.opening_unit
            phase.append(torch.from_numpy(opening).to(self.command_mean))
        return phase

    def _points(self, obs: PolicyObs, text: Tensor, augmented: Augmented | None) -> list[Points]:
        """Points in each camera's image; with a waypoint those before the shift."""
        offsets: Sequence[Tensor | None] = [None] * len(self.encoders)
        if augmented is not None and self.waypoint_head is not None:
            offsets = augmented.offset
        images = [obs.image, *(obs.more[name] for name in self.config.cameras[1:])]
        return [
            encoder.find(image.to(self.device), text, offset=offset)
            for encoder, image, offset in zip(self.encoders, images, offsets, strict=True)
        ]

    def _tempered(self, obs: PolicyObs, temperature: float, displaced: Tensor | None = None) -> Tensor:
        if not temperature > 0:
            raise SettingError(f"temperature: must be above 0, got {temperature}; for greedy pass generators=None")
        return self.predict(obs, displaced=displaced)[0] / temperature

    @staticmethod
    def _scaled(numbers: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        # Beyond five deviations only the direction counts: an outlier must not swamp the decoder.
        return ((numbers.to(mean) - mean) / std).clamp(-5, 5)

    def _sample(
        self, logp: Tensor, generators: Sequence[torch.Generator], correlated_noise: CorrelatedNoise | None
    ) -> Tensor:
        rows, length, size, _ = logp.shape
        if len(generators) != rows:
            raise SettingError(f"generators: one per row, so {rows}, got {len(generators)}")
        uniform = uniform_draws(generators, length, size, correlated_noise)
        return inverse_cdf(logp.double().exp(), uniform.to(logp.device))

    def _check_token(self, token: Tensor, rows: int) -> None:
        shape = (rows, self.chunk_length, self.actions.size)
        if token.dtype != torch.int64 or tuple(token.shape) != shape:
            raise SettingError(f"token: must be int64 {list(shape)}, got {token.dtype} {list(token.shape)}")
        if int(token.min()) < 0 or int(token.max()) >= self.config.bins:
            raise SettingError(f"token: must be in [0, {self.config.bins}), got {token.min()} … {token.max()}")
