"""Unit under test: ``worldrl judge``, on films in files."""

import json

import numpy as np
import pytest

from worldrl.cli import main
from worldrl.core.errors import ArtefactError, RunDirectoryError, SettingError
from worldrl.evaluation.world_model import film_pairs
from worldrl.evaluation.world_model.film import write_mp4
from worldrl.jobs.world_model import judge
from worldrl.jobs.world_model.judge import JudgeSettings

FRAMES = 6


def films(seed=0, count=3, frames=FRAMES, side=16):
    """Still coarse ground and a bright square that moves."""
    blocks = np.random.default_rng(seed).integers(0, 200, (count, 1, 4, 4, 3), dtype=np.uint8)
    made = blocks.repeat(side // 4, 2).repeat(side // 4, 3).repeat(frames, 1)
    for frame in range(frames):
        made[:, frame, 4:8, 2 * frame : 2 * frame + 4] = 255
    return made


@pytest.fixture
def ask(tmp_path):
    np.save(tmp_path / "real.npy", films())
    np.save(tmp_path / "generated.npy", films() // 2)

    def settings(**given):
        paths = {name: str(tmp_path / f"{name}.npy") for name in ("real", "generated")}
        return JudgeSettings(**({**paths, "run_dir": str(tmp_path / "run"), "threads": 1} | given))

    return settings


def test_it_writes_result_page_and_card_from_videos(tmp_path, capsys):
    for folder, frames in (("real", films(side=256)), ("generated", films(side=256) // 2)):
        (tmp_path / folder).mkdir()
        for number, film in enumerate(frames):
            write_mp4(film, tmp_path / folder / f"{number}.mp4", 10)
    (tmp_path / "outcomes.csv").write_text("film,real,generated\n0,1,1\n1,0,1\n2,0,0\n")
    paths = [f"{name}={tmp_path / name}" for name in ("real", "generated")]
    more = [f"outcomes={tmp_path / 'outcomes.csv'}", f"run_dir={tmp_path / 'run'}", "threads=1"]
    assert main(["judge", *paths, *more]) == 0
    metrics = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    assert (metrics["pairs"], metrics["frames"], metrics["image_size"]) == (3, FRAMES - 1, [256, 256])
    assert (metrics["false_success_rate"]["k"], metrics["false_success_rate"]["n"]) == (1, 2)
    assert set(metrics["not_computed"]) >= {"action_swap_ratio", "lpips", "fvd"}
    assert "false_success_rate" not in metrics["not_computed"]
    card, page = ((tmp_path / "run" / name).read_text().replace("\xa0", " ") for name in ("README.md", "report.html"))
    said = capsys.readouterr().err
    for text in (card, page):
        assert "films do not say what the model shows under other actions" in text
    assert f"PSNR (dB) after 5 frames | {metrics['psnr@5']['value']:.3g} [" in card
    assert "| real failures that are generated as successes (false positives) | 50" in card
    assert "library_name" not in card
    assert f"card: {tmp_path / 'run' / 'README.md'}" in said
    assert "Worst 1" in page


def test_the_same_films_in_other_forms_give_the_same_numbers(ask, tmp_path):
    first = judge.main(ask())
    for name in ("real", "generated"):
        (tmp_path / f"{name}-files").mkdir()
        for number, film in enumerate(np.load(tmp_path / f"{name}.npy")):
            np.save(tmp_path / f"{name}-files" / f"{number}.npy", film)
    other = judge.main(
        ask(**{n: str(tmp_path / f"{n}-files") for n in ("real", "generated")}, run_dir=str(tmp_path / "other"))
    )
    assert {k: v for k, v in other.items() if k not in ("real", "generated")} == {
        k: v for k, v in first.items() if k not in ("real", "generated")
    }
    halved = np.square(films()[:, 1:] / 255 - (films() // 2)[:, 1:] / 255).mean()
    assert first["psnr"]["value"] == pytest.approx(-10 * np.log10(halved))


def test_films_are_paired_by_name_or_by_order(ask, tmp_path):
    for name, frames, names in (("a", films(), "xyz"), ("b", films()[::-1], "zyx"), ("c", films(), "pqr")):
        (tmp_path / name).mkdir()
        for film, one in zip(frames, names, strict=True):
            np.save(tmp_path / name / f"{one}.npy", film)
    a, b, c = (str(tmp_path / name) for name in "abc")
    assert judge.main(ask(real=a, generated=b))["psnr"]["value"] == 100
    assert judge.main(ask(real=a, generated=c, pair="order", run_dir=str(tmp_path / "o")))["psnr"]["value"] == 100
    with pytest.raises(ArtefactError, match=r"has no film 'x', 'y', 'z'; .*; give partners one name, or pair=order"):
        judge.main(ask(real=a, generated=c))
    (tmp_path / "c" / "r.npy").unlink()
    with pytest.raises(ArtefactError, match=r"holds 3 films, .* 2; give as many of each"):
        judge.main(ask(real=a, generated=c, pair="order"))


def test_frames_cut_all_films_to_one_length(ask, tmp_path):
    np.save(tmp_path / "longer.npy", films(frames=FRAMES + 2))
    with pytest.raises(
        ArtefactError, match=r"real\.npy: film 0: has 6 frames, 8 are needed, as .*longer\.npy.*; give frames=6"
    ):
        judge.main(ask(generated=str(tmp_path / "longer.npy")))
    found = judge.main(ask(generated=str(tmp_path / "longer.npy"), frames=5))
    assert (found["psnr"]["value"], found["frames"]) == (100, 4)
    with pytest.raises(ArtefactError, match="has 6 frames, 7 are needed; give frames=6"):
        judge.main(ask(frames=7, run_dir=str(tmp_path / "long")))


@pytest.mark.parametrize(
    ("made", "given", "said"),
    [
        (films(side=20), {}, "its images have 20 by 20 pixels, those of .* 16 by 16; bring all films to one size"),
        (films(frames=1), {}, "has 1 frames, of which the model was given 1"),
        (films(), {"given_frames": 6}, "has 6 frames, of which the model was given 6"),
        (films(count=2), {}, r"generated\.npy has no film '2'"),
    ],
    ids=["another size", "one frame", "all given", "unpaired"],
)
def test_what_cannot_be_compared_is_refused_and_leaves_the_folder_free(ask, tmp_path, made, given, said):
    np.save(tmp_path / "generated.npy", made)
    with pytest.raises(ArtefactError, match=said):
        judge.main(ask(**given))
    np.save(tmp_path / "generated.npy", films())
    assert judge.main(ask())["psnr"]["value"] == 100


def test_small_images_and_wrong_settings_are_refused(ask, tmp_path):
    np.save(tmp_path / "small.npy", films()[:, :, :8, :8])
    with pytest.raises(ArtefactError, match="8 by 8 pixels; 11 are the least"):
        judge.main(ask(real=str(tmp_path / "small.npy"), generated=str(tmp_path / "small.npy")))
    with pytest.raises(SettingError, match="frames: 2 leaves nothing to measure after given_frames=2"):
        ask(frames=2, given_frames=2)
    with pytest.raises(SettingError, match="pair"):
        ask(pair="names")
    fvd = tmp_path / "i3d.safetensors"
    with pytest.raises(ArtefactError, match=r"i3d\.safetensors"):
        judge.main(ask(fvd=str(fvd)))


def test_a_stopped_run_resumes_and_other_films_are_refused(ask, tmp_path, monkeypatch):
    whole, inner, seen = judge.main(ask(run_dir=str(tmp_path / "whole"))), film_pairs.measure_pair, []

    def stop_at_third(name, *rest):
        seen.append(name)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return inner(name, *rest)

    monkeypatch.setattr(judge, "measure_pair", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        judge.main(ask())
    assert judge.main(ask()) == whole
    assert seen == ["0", "1", "2", "2"]
    np.save(tmp_path / "generated.npy", films())
    with pytest.raises(RunDirectoryError, match="was begun with other content"):
        judge.main(ask())
