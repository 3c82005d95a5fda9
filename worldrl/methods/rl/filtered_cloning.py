"""Self-training in imagination (ReST: Gulcehre et al. 2023, "Reinforced Self-Training for Language Modeling").

::

    grow:     policy ──► imagined rollouts ──► those imagined to succeed ──┐
    improve:  policy ◄── token cross-entropy ◄── demonstrations ───────────┘

Imitating one's own successes is a policy gradient taken to convergence: each rollout serves hundreds of gradient steps,
which is what a small machine needs. The baseline is the mates' rate of success (leave one out, as in RLOO), so that
what always succeeds anyway is not learned again. A success that is not trusted (``methods.rl.filtering``) counts less.
Other parts may choose starts, group sizes, advantages and weights; in any case failures teach nothing. Exploration
(``policies.exploration``) sees to it that there are successes worth imitating.

Shapes legend: ``B`` rollouts, ``M`` kept chunks, ``L`` control steps per chunk, ``A`` numbers of a command.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from worldrl.core.embodiment import AnyEmbodiment, integrate_commands
from worldrl.core.rng import stream_seed
from worldrl.core.storage.artefact import read_artefact, write_artefact
from worldrl.core.storage.log import MetricLog, Progress
from worldrl.methods.imitation.behaviour_cloning import Source, clone
from worldrl.methods.rl.advantages import leave_one_out
from worldrl.methods.rl.budgets import uniform
from worldrl.methods.rl.config import FilteredCloning, Parts
from worldrl.methods.rl.filtering import RolloutFilter
from worldrl.methods.rl.groups import group_sum
from worldrl.methods.rl.imagination import PolicyImagination
from worldrl.methods.rl.imagining import Imaginers, ImaginingProcess, in_order, policy_weights
from worldrl.methods.rl.interfaces import Collected, Request, Trace
from worldrl.methods.rl.selection import successes
from worldrl.methods.rl.starts import balanced
from worldrl.methods.rl.trust import FilterResult
from worldrl.policies.exploration import Exploration
from worldrl.policies.samples import Samples
from worldrl.policies.token.policy import TokenPolicy
from worldrl.policies.token.waypoint import waypoints_along
from worldrl.rollout.imagined.env import WorldModelVecEnv
from worldrl.rollout.imagined.rollouts import ImaginedRollouts

KIND = "imagined-successes"
PROCESSES = "improvement.self_training.processes"
MORE = "more."  # before the names of what is observed besides image, command and instruction, in a file of tensors


@dataclass(frozen=True)
class SelectedSamples:
    """What one batch of rollouts leaves to learn."""

    samples: Samples  # ``M`` chunks of imagined successes.
    weight: Tensor  # float32 ``[M]``, how much each counts.
    rate: float  # of imagined success.
    # what became known of the starts: numbers of their records, successes and rollouts there; None: nothing was noted.
    outcome: tuple[list[int], list[float], list[float]] | None = None


def selected_samples(
    rollouts: ImaginedRollouts,
    policy: TokenPolicy,
    trust: Tensor | None = None,
    weight: Tensor | None = None,
    waypoint: Tensor | None = None,
) -> SelectedSamples:
    """Keep successful chunks, weighed by ``weight [T, B]`` (None: 1 - their mates' rate of success) and ``trust [B]``.

    ``waypoint`` is float32 ``[T, B, A]``; None: unknown.
    """
    chunk, row = (rollouts.valid & rollouts.success).nonzero(as_tuple=True)
    rows = row.tolist()
    samples = Samples(
        image=rollouts.image[chunk, row],
        command=rollouts.command[chunk, row],
        chunk=policy.decode(rollouts.token[chunk, row].to(policy.device)).cpu(),
        instruction=tuple(rollouts.instruction[r] for r in rows),
        task=tuple(rollouts.task[r] for r in rows),
        more={name: value[chunk, row] for name, value in rollouts.more.items()},
        waypoint=None if waypoint is None else waypoint[chunk, row],
    )
    if weight is None:
        trace = Trace(0, rollouts.group, rollouts.valid, rollouts.success)
        weight = weight_of(trace, Parts(), torch.Generator())
    weight = weight * (1 if trust is None else trust)
    return SelectedSamples(samples, weight[chunk, row], float(rollouts.success.float().mean()))


def imagined_waypoints(rollouts: ImaginedRollouts, embodiment: AnyEmbodiment, deviation: Tensor) -> Tensor:
    """Waypoint before each chunk of the successes, float32 ``[T, B, A]``, by their own actions; NaN elsewhere.

    ``deviation`` is the commands' standard deviation ``[A]``.
    """
    assert rollouts.action is not None
    waypoint, length = torch.full_like(rollouts.command, torch.nan), rollouts.action.shape[2]
    for row in rollouts.success.nonzero().squeeze(1).tolist():
        chunks = int(rollouts.valid[:, row].sum())
        starts, action = rollouts.command[:chunks, row], rollouts.action[:chunks, row]
        path = torch.cat([starts[:1], integrate_commands(embodiment, starts, action).flatten(0, 1)]).numpy()
        found = waypoints_along(path, embodiment.actions, deviation.cpu().numpy())
        waypoint[:chunks, row] = torch.from_numpy(found[::length])
    return waypoint


def weight_of(trace: Trace, parts: Parts, generator: torch.Generator) -> Tensor:
    """Say how much each chunk counts, ``[T, B]``, by the success of its rollout and of its mates."""
    assert trace.wins is not None
    success = trace.wins.float()
    advantage = (parts.advantage or leave_one_out)(success, trace)
    return (parts.selection or successes)(advantage, success, trace, generator)


def self_train(
    policy: TokenPolicy,
    env: WorldModelVecEnv,
    demonstrations: Samples,
    collected: Samples | None,
    config: FilteredCloning,
    *,
    exploration: Exploration,
    p_keyframe: float,
    paraphrases: Mapping[str, Sequence[str]],
    seed: int,
    folder: Path,
    log: MetricLog,
    series: str,
    judge: RolloutFilter | None = None,
    parts: Parts | None = None,
    imaginers: Imaginers | None = None,
) -> list[float]:
    """Improve ``policy`` in place by cloning its imagined successes; a killed training continues bit for bit.

    Equation: L = -mean w log π_θ, w = 1 - the mates' rate of success
    Paper: ReST (2308.08998)

    ``env`` has ``config.rows`` rows; ``demonstrations``, and real successes that the loop ``collected``, are mixed into
    every gradient step. ``imaginers`` make the other ``processes`` (None: on this machine). Returns imagined success
    rates.
    """
    source = PolicyImagination(env, policy, exploration, p_keyframe, seed, judge, imagining="grow", judging="grow")
    actions = config.teaches_actions(waypoint=policy.config.waypoint)
    select_successes: list[SelectedSamples] = []
    batches = [folder / f"batch-{k:05d}" for k in range(config.cycles * config.batches)]
    log.truncate(series, sum(batch.exists() for batch in batches))  # a saved batch has its line, see _log_and_save
    for cycle in range(config.cycles):
        policy.eval()
        numbers = range(cycle * config.batches, (cycle + 1) * config.batches)
        missing = [k for k in numbers if not batches[k].exists()]
        with (
            Progress(f"{series}: imagining", config.batches, unit="batches") as progress,
            _imagined_batches(
                source, policy, config, parts or Parts(), missing, folder, imaginers or ImaginingProcess
            ) as imagined,
        ):
            for k in numbers:
                if k in missing:
                    _log_and_save(next(imagined), batches[k], log, series, k)
                select_successes.append(load_selected(batches[k]))
                _learn(source, select_successes[-1])
                progress.advance(note=f"imagined success {select_successes[-1].rate:.2f}")
        clone(
            policy,
            shared_out(demonstrations, collected, select_successes, config, actions=actions),
            demonstrations=demonstrations,
            config=config.cloning,
            seed=stream_seed(seed, "improve", cycle),
            folder=folder / f"cycle-{cycle}",
            log=log,
            paraphrases=paraphrases,
            series=f"{series}-cloning-{cycle}",
        )
    return [batch.rate for batch in select_successes]


@contextmanager
def _imagined_batches(
    source: PolicyImagination,
    policy: TokenPolicy,
    config: FilteredCloning,
    parts: Parts,
    numbers: Sequence[int],
    folder: Path,
    imaginers: Imaginers,
) -> Generator[Iterator[SelectedSamples]]:
    """Give the batches of these numbers in order: imagined in this process when asked for, or ahead by several others."""
    requests = (_request(source, config, parts, number) for number in numbers)
    if config.processes == 1 or not numbers:
        judged = ((request, source.imagine(request)) for request in requests)
        yield (_selected(source, policy, parts, *one) for one in judged)
        return
    threads = max(1, torch.get_num_threads() // config.processes)
    processes = [
        imaginers(source, folder / f"imagining-{k}", PROCESSES, threads=threads) for k in range(config.processes)
    ]
    try:
        asked = list(requests)
        found = in_order(processes, asked, version=0, weights=policy_weights(policy))
        yield (_selected(source, policy, parts, *one) for one in zip(asked, found, strict=True))
    finally:
        for process in processes:
            process.close()


def _request(source: PolicyImagination, config: FilteredCloning, parts: Parts, number: int) -> Request:
    draw, count = parts.starts or balanced, config.rows // config.group_size
    starts = draw(source.records, count, source.stream(number, "starts"))
    return Request.make(number, starts, (parts.budget or uniform)(source.records, starts, config.rows))


def _selected(
    source: PolicyImagination, policy: TokenPolicy, parts: Parts, request: Request, judged: FilterResult
) -> SelectedSamples:
    rollouts = judged.rollouts
    trace = replace(source.trace(request, Collected(judged, source.score(judged))), wins=rollouts.success)
    weight = weight_of(trace, parts, source.stream(request.iteration, "trained"))
    wins = group_sum(rollouts.success.double(), rollouts.group)
    outcome = (request.starts.tolist(), wins.tolist(), rollouts.group.bincount().double().tolist())
    embodiment, reads = source.env.world_model.embodiment, policy.config.waypoint
    waypoint = imagined_waypoints(rollouts, embodiment, policy.command_std) if reads else None
    return replace(selected_samples(rollouts, policy, judged.trust, weight, waypoint), outcome=outcome)


def _learn(source: PolicyImagination, batch: SelectedSamples) -> None:
    """Count a batch's successes and failures by start; read from its folder, so that a killed training knows as much."""
    if batch.outcome is not None:
        starts, wins, count = batch.outcome
        source.records.learn(torch.tensor(starts), torch.tensor(wins), torch.tensor(count))


def _log_and_save(batch: SelectedSamples, folder: Path, log: MetricLog, series: str, number: int) -> None:
    """Save a batch; first its line in the log, which may then know one batch more than there is, never one fewer."""
    kept = {"self_training/samples": len(batch.samples), "self_training/weight": float(batch.weight.sum())}
    log.write(series, number, {"self_training/imagined_success": batch.rate, **kept})
    log.flush()
    save_selected(folder, batch)


def shared_out(
    demonstrations: Samples,
    collected: Samples | None,
    select_successes: Sequence[SelectedSamples],
    config: FilteredCloning,
    *,
    actions: bool = True,
) -> list[Source]:
    """Share each batch out; where nothing imagined or collected counts, demonstrations take its rows.

    Without ``actions`` what was imagined teaches its waypoints alone.
    """
    size, sources = config.cloning.batch_size, list[Source]()
    weight = torch.cat([torch.zeros(0), *(batch.weight for batch in select_successes)])
    if (weight > 0).any():
        imagined = Samples.join([batch.samples for batch in select_successes])
        if not actions:
            imagined = replace(imagined, chunk=torch.full_like(imagined.chunk, torch.nan))
        sources.append(Source(imagined, round(config.imagined_share * size), weight))
    if collected is not None:
        sources.append(Source(collected, round(config.collected_share * size)))
    sources.insert(0, Source(demonstrations, size - sum(source.rows for source in sources)))
    return [source for source in sources if source.rows]


def save_selected(folder: Path, batch: SelectedSamples) -> None:
    """Write what a batch leaves to learn, whole or not at all."""
    samples = batch.samples
    own = {"image": samples.image, "command": samples.command, "chunk": samples.chunk, "weight": batch.weight}
    own |= {} if samples.waypoint is None else {"waypoint": samples.waypoint}
    tensors = {**own, **{MORE + name: value for name, value in samples.more.items()}}
    config = {"instruction": list(samples.instruction), "task": list(samples.task), "imagined_success": batch.rate}
    config |= {} if batch.outcome is None else {"outcome": batch.outcome}
    write_artefact(folder, kind=KIND, config=config, tensors={k: v.contiguous() for k, v in tensors.items()})


def load_selected(folder: Path) -> SelectedSamples:
    """Read :func:`save_selected`'s folder; ArtefactError where it is damaged."""
    artefact = read_artefact(folder, kind=KIND)
    tensors, config = dict(artefact.tensors), artefact.config
    weight = tensors.pop("weight")
    more = {name.removeprefix(MORE): tensors.pop(name) for name in list(tensors) if name.startswith(MORE)}
    samples = Samples(**tensors, more=more, instruction=tuple(config["instruction"]), task=tuple(config["task"]))
    outcome = tuple(config["outcome"]) if "outcome" in config else None
    return SelectedSamples(samples, weight, float(config["imagined_success"]), outcome)
