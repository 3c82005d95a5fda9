"""Imagined rollouts to the horizon, whose actions can then be executed in the simulator.

Recorded actions depend on how the recording went: a policy that observes a miss moves differently. A world model may
read the outcome off them. The actions of an imagined rollout depend on the model's own images only. Their execution is
therefore the fair test of imagination (`rewards`' rule against reality), and the executed episodes are the best data
for a world model. A rollout may also begin in the middle of a recorded episode, after the recorded actions.

Shapes legend: ``E`` rollouts, ``T`` control steps, ``N`` imagined frames, ``L`` control steps per chunk, ``A`` numbers
of an action.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from worldrl.core.actions import TOOL_ACTIONS, ActionSpec
from worldrl.core.errors import ArtefactError
from worldrl.core.interfaces import Policy, WorldModel
from worldrl.core.observation import require_consecutive, require_named
from worldrl.core.rng import stream, stream_seed
from worldrl.core.storage.atomic import write_file
from worldrl.core.storage.log import Progress
from worldrl.core.types import Episode, ResetRecord
from worldrl.policies.exploration import Exploration
from worldrl.rewards.success import SuccessRule, debounced_score, success_step
from worldrl.rollout.imagined.recent import after_chunk, policy_obs, recorded
from worldrl.rollout.imagined.reset_store import record_at
from worldrl.rollout.imagined.starts import EMBEDDED_BACKEND, SimulatorBackend
from worldrl.rollout.real.specs import EpisodeSpec, spec_of


@dataclass(frozen=True)
class PolicyRollouts:
    """Imagined rollouts from known initial states of the simulator.

    ``index`` and ``seed`` int64 ``[E]`` name the initial state. ``action`` float32 ``[E, T, A]`` holds still beyond a
    task's horizon, and ``probability`` of success float32 ``[E, N]`` is 0 there. ``frame_stride`` is the number of
    control steps between imagined frames.
    """

    task: tuple[str, ...]
    index: NDArray[np.int64]
    seed: NDArray[np.int64]
    action: NDArray[np.float32]
    probability: NDArray[np.float32]
    frame_stride: int
    actions: ActionSpec = TOOL_ACTIONS

    def __len__(self) -> int:
        return len(self.task)

    def specs(self, source: str) -> list[EpisodeSpec]:
        """Name the real episodes that execute these rollouts."""
        return [
            EpisodeSpec(task, int(index), int(seed), source=source)
            for task, index, seed in zip(self.task, self.index, self.seed, strict=True)
        ]

    def success_step(self, rule: SuccessRule) -> NDArray[np.int64]:
        """Return the control step of each rollout's first imagined success ``[E]``, -1 where there is none."""
        return success_step(torch.from_numpy(self.probability), rule, self.frame_stride)

    def save(self, file: Path) -> None:
        """Write all arrays into one ``.npz`` file, whole or not at all."""
        data = io.BytesIO()
        np.savez_compressed(
            data,
            task=np.array(self.task),
            index=self.index,
            seed=self.seed,
            action=self.action,
            probability=self.probability,
            frame_stride=np.int64(self.frame_stride),
            actions=json.dumps(self.actions.to_json()),
        )
        write_file(file, data.getvalue())

    @classmethod
    def load(cls, file: Path) -> PolicyRollouts:
        """Read :meth:`save`'s file; ArtefactError where it is missing, truncated or another file."""
        try:
            with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as data:
                return cls(
                    task=tuple(str(name) for name in data["task"]),
                    index=data["index"],
                    seed=data["seed"],
                    action=data["action"],
                    probability=data["probability"],
                    frame_stride=int(data["frame_stride"]),
                    actions=ActionSpec.from_json(json.loads(str(data["actions"])))
                    if "actions" in data
                    else TOOL_ACTIONS,
                )
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ArtefactError(f"{file}: cannot be read as imagined rollouts: {error}") from error


def imagine_policy(
    model: WorldModel,
    policy: Policy,
    tasks: Sequence[str],
    count: int,
    *,
    seed: int,
    horizon: Mapping[str, int],
    image_size: int,
    exploration: Exploration,
    simulator_backend: SimulatorBackend = EMBEDDED_BACKEND,
    candidates: int = 1,
    debounce: int = 1,
) -> PolicyRollouts:
    """Imagine ``count`` rollouts of each task from initial states 0..count-1 of ``seed``, to the horizon.

    The rollouts do not stop at a success. ``seed`` is also that of the policy's and the model's draws; ``horizon``
    gives control steps per task. Of ``candidates`` rollouts from each state, the most probable success is kept
    (:func:`most_probable`).
    """
    length = model.chunk_length
    whole = {task: -(-horizon[task] // length) * length for task in tasks}
    steps = max(whole.values())
    parts = []
    with Progress("imagine rollouts", count * len(tasks), unit="rollouts") as progress:
        for task in tasks:
            layout = {"memory_frames": model.memory_frames, "image_size": image_size, "more": model.more}
            starts = simulator_backend.starts([task], count, seed=seed, **layout)
            seeds = [seed, *(stream_seed(seed, "candidate", number) for number in range(1, candidates))]
            tried = [
                imagine_policy_rows(model, policy, starts, whole[task], seed=one, exploration=exploration)
                for one in seeds
            ]
            rows = most_probable(tried, horizon[task] // model.frame_stride, debounce)
            action, probability = _padded_rows(rows, steps - whole[task], model.frame_stride)
            action[:, horizon[task] :] = policy.actions.hold(action[:, horizon[task] - 1])[:, None]
            probability[:, horizon[task] // model.frame_stride :] = 0
            parts.append((action, probability))
            progress.advance(count)
    action, probability = (np.concatenate(part) for part in zip(*parts, strict=True))
    names = tuple(task for task in tasks for _ in range(count))
    index, seeds = np.tile(np.arange(count), len(tasks)), np.full(len(names), seed, np.int64)
    return PolicyRollouts(names, index, seeds, action, probability, model.frame_stride, policy.actions)


Rows = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Actions ``[E, T, A]`` and success probabilities ``[E, N]``."""


def _padded_rows(rows: Rows, more: int, stride: int) -> Rows:
    """Append ``more`` control steps, of zeros."""
    action, probability = rows
    return np.pad(action, ((0, 0), (0, more), (0, 0))), np.pad(probability, ((0, 0), (0, more // stride)))


def most_probable(tried: Sequence[Rows], frames: int, debounce: int) -> Rows:
    """Keep, of several rollouts from each start, that of the largest debounced probability in its first ``frames``.

    The first of equal ones (V-GPS, 2410.13816, over whole rollouts).
    """
    scores = np.stack([debounced_score(probability[:, :frames], debounce) for _, probability in tried])
    best, row = scores.argmax(axis=0), np.arange(scores.shape[1])
    action, probability = (np.stack(part)[best, row] for part in zip(*tried, strict=True))
    return action, probability


def imagine_from_keyframes(
    model: WorldModel,
    policy: Policy,
    starts: Sequence[tuple[Episode, int]],
    *,
    seed: int,
    horizon: Mapping[str, int],
    exploration: Exploration,
) -> PolicyRollouts:
    """Imagine recorded episodes further, from one of their frames to the horizon.

    ``starts`` are episodes from sampled initial states, and a frame of each, rounded down to a model frame. ``horizon``
    gives control steps per task. Returns rollouts whose first actions are the recorded ones, with probability 0 there:
    executed from the initial state, they lead to that frame and on.
    """
    stride, length = model.frame_stride, max(horizon.values())
    at = [step - step % stride for _, step in starts]
    records = [
        record_at(
            e, step, memory_frames=model.memory_frames, frame_stride=stride, source="imagined with", more=model.more
        )
        for (e, _), step in zip(starts, at, strict=True)
    ]
    joined, later = {}, {}
    for task in dict.fromkeys(episode.task for episode, _ in starts):
        rows, limit = [row for row, (episode, _) in enumerate(starts) if episode.task == task], horizon[task]
        steps = -(-(limit - min(at[row] for row in rows)) // model.chunk_length) * model.chunk_length
        begun = [records[row] for row in rows]
        found = imagine_policy_rows(model, policy, begun, steps, seed=seed, exploration=exploration)
        for row, action, probability in zip(rows, *found, strict=True):
            joined[row] = _joined(starts[row][0], at[row], action, limit, length)
            later[row] = _later(probability, at[row] // stride, limit // stride, length // stride)
    order = range(len(starts))
    specs = [spec_of(episode.meta) for episode, _ in starts]
    index, seeds = (np.array([getattr(spec, name) for spec in specs], np.int64) for name in ("index", "seed"))
    names = tuple(spec.task for spec in specs)
    actions, probabilities = (np.stack([part[row] for row in order]) for part in (joined, later))
    return PolicyRollouts(names, index, seeds, actions, probabilities, stride, policy.actions)


def _joined(episode: Episode, step: int, action: NDArray[np.float32], horizon: int, length: int) -> NDArray[np.float32]:
    """Put the recorded actions before the imagined ones; hold still from the horizon to ``length``."""
    whole = np.concatenate([episode.action[:step], action])[:horizon]
    return np.concatenate([whole, np.repeat(episode.actions.hold(whole[-1:]), length - horizon, axis=0)])


def _later(probability: NDArray[np.float32], first: int, horizon: int, length: int) -> NDArray[np.float32]:
    """Shift frame probabilities by ``first`` frames; 0 before and beyond the horizon."""
    later = np.zeros(length, np.float32)
    later[first:horizon] = probability[: horizon - first]
    return later


def join_rollouts(parts: Sequence[PolicyRollouts]) -> PolicyRollouts:
    """Concatenate rollouts of one world model; shorter ones hold still at their end."""
    actions = parts[0].actions
    steps, frames = (max(getattr(part, name).shape[1] for part in parts) for name in ("action", "probability"))
    return PolicyRollouts(
        task=tuple(task for part in parts for task in part.task),
        index=np.concatenate([part.index for part in parts]),
        seed=np.concatenate([part.seed for part in parts]),
        action=np.concatenate([_padded_actions(part.action, steps, actions) for part in parts]),
        probability=np.concatenate(
            [np.pad(part.probability, ((0, 0), (0, frames - part.probability.shape[1]))) for part in parts]
        ),
        frame_stride=parts[0].frame_stride,
        actions=actions,
    )


def _padded_actions(action: NDArray[np.float32], steps: int, actions: ActionSpec) -> NDArray[np.float32]:
    still = actions.hold(action[:, -1])[:, None]
    return np.concatenate([action, np.repeat(still, steps - action.shape[1], axis=1)], axis=1)


@torch.no_grad()
def imagine_policy_rows(
    model: WorldModel, policy: Policy, starts: Sequence[ResetRecord], steps: int, *, seed: int, exploration: Exploration
) -> Rows:
    """Imagine one rollout per start; return its actions ``[E, T, A]`` and success probabilities ``[E, N]``.

    Raises SettingError (the policy observes what the model does not imagine, or more control steps than it keeps).
    """
    require_named(policy.more, model.more)
    require_consecutive(policy.n_obs_steps, model.frame_stride, model.memory_frames, "the policy")
    actions, probabilities = [], []
    task, instruction = [record.task for record in starts], [record.instruction for record in starts]
    generators = [stream(seed, "habit", task[row], row) for row in range(len(starts))]
    correlated_noise = exploration.correlated_noise(generators, policy.actions.size)

    def draws(name: str, chunk: int) -> list[torch.Generator]:
        return [stream(seed, "dream", name, task[row], row, chunk) for row in range(len(starts))]

    state, recent, imagined = model.start(starts), recorded(starts, model.more, policy.n_obs_steps), None
    for chunk in range(steps // model.chunk_length):
        recent = recent if imagined is None else after_chunk(recent, model, state, imagined)
        action = policy.act(
            policy_obs(recent, instruction, policy),
            generators=draws("policy", chunk),
            temperature=exploration.temperature,
            correlated_noise=correlated_noise,
        ).action
        state, imagined = model.imagine(state, action, generators=draws("noise", chunk))
        actions.append(action.cpu().numpy())
        probabilities.append(imagined.success_prob.float().cpu().numpy())
    return np.concatenate(actions, axis=1), np.concatenate(probabilities, axis=1)


def execute(
    policy_rollouts: PolicyRollouts, simulator_backend: SimulatorBackend = EMBEDDED_BACKEND
) -> NDArray[np.int64]:
    """Execute every rollout in its simulator; return the step of its first real success ``[E]``, -1 for none."""
    step, task = np.full(len(policy_rollouts), -1, np.int64), np.array(policy_rollouts.task)
    with Progress("execute imagined rollouts", len(policy_rollouts), unit="episodes") as progress:
        for name in dict.fromkeys(policy_rollouts.task):
            rows = np.flatnonzero(task == name)
            starts = [
                (int(index), int(seed))
                for index, seed in zip(policy_rollouts.index[rows], policy_rollouts.seed[rows], strict=True)
            ]
            actions = list(policy_rollouts.action[rows])
            step[rows] = simulator_backend.replay(name, starts, actions, progress.advance)
    return step


GRACE_STEPS = 8
"""Control steps that a real success may be later: a lift in motion is imagined to succeed a little early."""


def confirmed_by_execution(imagined: NDArray[np.int64], real: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Confirm each rollout by its execution.

    ``imagined`` and ``real`` are the steps of the first successes ``[E]``, -1 for none. Returns ``[E]``: the execution
    succeeded, and at most :data:`GRACE_STEPS` after an imagined success.
    """
    return (real >= 0) & ((imagined < 0) | (real <= imagined + GRACE_STEPS))
