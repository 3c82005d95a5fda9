"""``worldrl judge``: a video model of any origin, from the films that it generated and films of the same events.

The model is not loaded. Its films are compared with the real ones frame by frame, and a card is written; what films alone
cannot say is listed with its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.device import resolve_device, set_threads
from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.storage.atomic import write_file
from worldrl.core.storage.log import Progress
from worldrl.core.storage.run import RunDirectory
from worldrl.data.films import Film, Films, open_films
from worldrl.evaluation.report.card import FILE, film_card
from worldrl.evaluation.report.store import publish
from worldrl.evaluation.world_model.film_pairs import (
    FilmMeasures,
    drifts_of,
    measure_pair,
    read_film_outcomes,
    summarise,
)
from worldrl.evaluation.world_model.fvd import Fvd, check_videos
from worldrl.evaluation.world_model.lpips import Lpips
from worldrl.evaluation.world_model.ssim import WINDOW
from worldrl.jobs.world_model.judge_report import NOTES, FilmFindings, card_rows, report_page, show
from worldrl.recipes.run import claim_inputs, open_run
from worldrl.recipes.world_model.tables import NO_WEIGHTS
from worldrl.settings import one_of, positive, required, setting

PAIRS = "01-pairs"
SHOWN = 5
"""Films that an error names."""
NOT_SAID = {
    "action_swap_ratio": "films do not say what the model shows under other actions",
    "probe_error_cm": "films do not say where objects are in the simulator",
    "imagined_real_pearson": "it needs imagined and real success of several policies",
    "imagined_frames_per_s": "the model is not run here",
}
NO_OUTCOMES = "films do not say which of them show success; outcomes=FILE.csv (film,real,generated) does"
NOT_STILL = "in every real film each pixel changes, as with a moving camera"


@dataclass
class JudgeSettings:
    """Which films, and how they are compared."""

    real: str = required(
        "films of real events: videos, folders of images, arrays, or a LeRobotDataset", made_by="worldrl collect"
    )
    generated: str = required(
        "films that the model generated of the same events, in any of these forms", made_by="worldrl play"
    )
    run_dir: str = setting("runs/judge", "where result.json, report.html and the card README.md are written")
    seed: int = setting(0, "root of every random stream, which the intervals are drawn from")
    device: str = setting("cpu", "cpu, cuda, cuda:N or auto; for LPIPS and FVD")
    threads: int = setting(2, "torch threads")
    pair: str = setting("name", "which films belong together: those of one name (or number), or of one place in order")
    given_frames: int = setting(1, "first frames of each film that the model was given; they are not measured")
    frames: int = setting(0, "frames of each film that are read, from the first; 0 reads all")
    camera: str = setting("", "camera of a LeRobotDataset; empty takes the main or only one")
    outcomes: str | None = setting(None, "CSV file film,real,generated with 0 or 1: which films show success")
    lpips: str | None = setting(None, "safetensors file with the weights of LPIPS (AlexNet); null: not computed")
    fvd: str | None = setting(
        None,
        "safetensors file with the weights of I3D (Kinetics-400), for the Fréchet video distance; null: not computed",
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        positive("threads", self.threads)
        one_of("pair", self.pair, ("name", "order"))
        if self.frames and self.frames <= self.given_frames:
            raise SettingError(
                f"frames: {self.frames} leaves nothing to measure after given_frames={self.given_frames}; give more, or 0"
            )


@dataclass(frozen=True)
class Pair:
    """A real film and the generated one of the same events."""

    real: Film
    generated: Film

    def frames(self, count: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The first ``count`` frames of the real and of the generated film; 0 takes all."""
        return self.real.read()[: count or None], self.generated.read()[: count or None]


def main(settings: JudgeSettings) -> dict[str, Any]:
    """Compare the films, write ``result.json``, ``report.html`` and the card ``README.md``, print the closing table.

    Returns the metrics, see ``docs/reference/metrics.md``. Raises ArtefactError (a film is missing, damaged, without partner,
    or of another size or length than the rest).
    """
    device = resolve_device(settings.device)
    set_threads(settings.threads)
    real, generated = (open_films(Path(path), settings.camera) for path in (settings.real, settings.generated))
    pairs = paired(real, generated, settings)
    names = [pair.real.name for pair in pairs]
    outcomes = None if settings.outcomes is None else read_film_outcomes(Path(settings.outcomes), names)
    lpips = None if settings.lpips is None else Lpips.load(Path(settings.lpips), device)
    fvd = None if settings.fvd is None else Fvd.load(Path(settings.fvd), device)
    with open_run("judge", settings) as run:
        inputs = {
            "real": {"path": settings.real, "hash": real.fingerprint},
            "generated": {"path": settings.generated, "hash": generated.fingerprint},
        }
        claim_inputs(run, inputs)
        frames = common_length(pairs, settings)
        if fvd is not None:
            check_videos(len(pairs), frames - settings.given_frames)
        measures = measured(run, pairs, frames, settings, lpips, fvd)
        drift = drifts_of(measures, seed=settings.seed)
        metrics = {
            **summarise(measures, drift, outcomes, seed=settings.seed),
            "given_frames": settings.given_frames,
            "image_size": list(measures.real.shape[2:4]),
            **inputs,
        }
        metrics["not_computed"] = not_computed(metrics, settings)
        result = run.write_result(metrics, seed=settings.seed, device=str(device))
        name = Path(settings.generated).resolve().stem
        card = film_card(result, name, card_rows(metrics), metrics["not_computed"], NOTES)
        write_file(run.path / FILE, card.encode(), error=ArtefactError)
        findings = FilmFindings(metrics, measures, drift)
        publish(run, report_page(findings, seed=settings.seed, device=str(device)))
        show(findings, run.path)
    return metrics


def not_computed(metrics: dict[str, Any], settings: JudgeSettings) -> dict[str, str]:
    """What a card of a video model holds and these films do not say, with the reason."""
    reasons = {
        "lpips": NO_WEIGHTS.format(name="lpips") if settings.lpips is None else None,
        "fvd": NO_WEIGHTS.format(name="fvd") if settings.fvd is None else None,
        "static_psnr": None if "static_psnr" in metrics else NOT_STILL,
        "false_success_rate": NO_OUTCOMES if settings.outcomes is None else None,
        **NOT_SAID,
    }
    return {name: reason for name, reason in reasons.items() if reason is not None}


# --- which films belong together --------------------------------------------------------------------------------------


def paired(real: Films, generated: Films, settings: JudgeSettings) -> list[Pair]:
    """Pair the films by name or by order; ArtefactError where one has no partner."""
    if settings.pair == "order":
        if len(real.films) != len(generated.films):
            raise ArtefactError(
                f"real={settings.real} holds {len(real.films)} films, generated={settings.generated} "
                f"{len(generated.films)}; give as many of each"
            )
        return [Pair(*films) for films in zip(real.films, generated.films, strict=True)]
    partner = {film.name: film for film in generated.films}
    known = {film.name for film in real.films}
    alone = {
        settings.generated: [film.name for film in real.films if film.name not in partner],
        settings.real: [film.name for film in generated.films if film.name not in known],
    }
    if missing := [f"{path} has no film {_named(names)}" for path, names in alone.items() if names]:
        raise ArtefactError(f"{'; '.join(missing)}; give partners one name, or pair=order for films in the same order")
    return [Pair(film, partner[film.name]) for film in real.films]


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more


def common_length(pairs: Sequence[Pair], settings: JudgeSettings) -> int:
    """Decode every film once and return the frames that are read of each.

    ArtefactError for a damaged film, or one of another size or length than the rest.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    with Progress("check films", total=len(pairs), unit="pairs") as progress:
        for pair in pairs:
            for film, frames in zip((pair.real, pair.generated), pair.frames(0), strict=True):
                shapes[film.where] = frames.shape
            progress.advance()
    first = next(iter(shapes))
    for where, shape in shapes.items():
        if shape[1:3] != shapes[first][1:3]:
            raise ArtefactError(
                f"{where}: its images have {shape[2]} by {shape[1]} pixels, those of {first} {shapes[first][2]} by "
                f"{shapes[first][1]}; bring all films to one size"
            )
        if min(shape[1:3]) < WINDOW:
            raise ArtefactError(f"{where}: its images have {shape[2]} by {shape[1]} pixels; {WINDOW} are the least")
    lengths = {where: shape[0] for where, shape in shapes.items()}
    shortest, longest = (choose(lengths, key=lengths.__getitem__) for choose in (min, max))
    if lengths[shortest] <= settings.given_frames:
        raise ArtefactError(
            f"{shortest}: has {lengths[shortest]} frames, of which the model was given {settings.given_frames} "
            "(given_frames); give longer films, or fewer given frames"
        )
    if (not settings.frames and lengths[shortest] != lengths[longest]) or settings.frames > lengths[shortest]:
        raise ArtefactError(
            f"{shortest}: has {lengths[shortest]} frames, {settings.frames or lengths[longest]} are needed"
            f"{'' if settings.frames else f', as {longest} has'}; give frames={lengths[shortest]}, or leave the film out"
        )
    return settings.frames or lengths[shortest]


def measured(
    run: RunDirectory, pairs: Sequence[Pair], frames: int, settings: JudgeSettings, lpips: Lpips | None, fvd: Fvd | None
) -> FilmMeasures:
    """Measure pair after pair; a pair that an earlier start has measured is read."""
    stage, files = run.stage(PAIRS), list[Path]()
    with Progress("compare films", total=len(pairs), unit="pairs") as progress:
        for number, pair in enumerate(pairs):
            files.append(stage.folder / f"{number:05d}.npz")
            if not files[-1].exists():
                films = pair.frames(frames)
                measure_pair(pair.real.name, *films, settings.given_frames, lpips, fvd).save(files[-1])
            progress.advance()
    if not stage.finished:
        stage.finish({"pairs": len(pairs), "frames": frames})
    return FilmMeasures.join([FilmMeasures.load(file) for file in files])
