"""The frame restorer: nothing untrained, the first frame where it still holds, trained on the right pairs."""

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import initial_weights, row_streams, stream
from worldrl.recipes.world_model.start import starting_world_model
from worldrl.world_models.video import restorer_training
from worldrl.world_models.video.codec import to_uint8, to_unit
from worldrl.world_models.video.config import RestorerConfig, VideoWorldModelConfig
from worldrl.world_models.video.episode_rollouts import whole_episodes
from worldrl.world_models.video.model import VideoWorldModel
from worldrl.world_models.video.restorer import FrameRestorer, of_each_view
from worldrl.world_models.video.restorer_training import fit_restorer, imagine_pairs
from worldrl.world_models.video.training_config import WorldModelTraining

CONFIG = WorldModelTraining(restorer_steps=30, restorer_batch=8, warmup=5, dtype="float32")


def test_an_untrained_one_shows_what_the_codec_decodes(make_world_model, make_record, tmp_path):
    """Weights from before get one on top: not a bit of a latent or of an image changes, saved and loaded too."""
    plain, wanted = make_world_model(), make_world_model(restorer=4).config
    plain.save(tmp_path / "plain")
    larger = starting_world_model(str(tmp_path / "plain"), wanted, plain.embodiment, seed=3, device=torch.device("cpu"))
    assert larger.restorer is not None
    larger.save(tmp_path / "larger")
    shown = []
    for model in (plain, larger, VideoWorldModel.load(tmp_path / "larger")):
        state = model.start([make_record(20), make_record(200)])
        action = torch.rand(2, 4, 7, generator=stream(0, "action")) * 2 - 1
        after, imagined = model.imagine(state, action, generators=row_streams(0, ("n",), 2))
        shown.append((imagined.latent, model.decode(imagined.latent, state.first), model.decode_newest(after, 1)))
    for other in shown[1:]:
        assert all(torch.equal(a, b) for a, b in zip(shown[0], other, strict=True))


def test_it_changes_images_and_never_the_imagined_states(make_world_model, make_record):
    """A trained one repaints; the latents stay those of the model without."""
    plain, painted = make_world_model(), make_world_model(restorer=4)
    painted.load_state_dict(painted.state_dict() | plain.state_dict())
    action = torch.zeros(1, 4, 7)
    one, other = (
        m.imagine(m.start([make_record(90)]), action, generators=row_streams(0, ("n",), 1)) for m in (plain, painted)
    )
    assert torch.equal(one[1].latent, other[1].latent)
    assert not torch.equal(plain.decode_newest(one[0], 1), painted.decode_newest(other[0], 1))


def test_each_row_is_restored_with_its_own_first_frame(make_world_model, make_record):
    model = make_world_model(restorer=4)
    state = model.start([make_record(30), make_record(60), make_record(220)])
    together = model.decode_newest(state, 1)[:, 0]
    for row in range(3):
        alone = model.decode_newest(state.select(torch.tensor([row])), 1)[:, 0]
        assert (together[row].int() - alone[0].int()).abs().max() <= 1
    mixed = model.decode(state.memory[:, -1:], state.first.flip(0))[:, 0]
    assert not torch.equal(mixed[0], together[0])
    assert (mixed[1].int() - together[1].int()).abs().max() <= 1


@pytest.mark.parametrize("block", [1, 2, 4])
def test_it_learns_to_take_the_still_part_from_the_first_frame(block):
    """Images that are the first frame, blurred, but for a square that moved: the blur goes, the square stays."""
    with initial_weights(0, "restorer"):
        restorer = FrameRestorer(RestorerConfig(width=16, block=block))
    optimizer = torch.optim.Adam(restorer.parameters(), 3e-3)

    def examples(step: int):
        draw = stream(1, step)
        first = torch.rand(8, 3, 16, 16, generator=draw) * 2 - 1
        blurred = torch.nn.functional.avg_pool2d(first, 3, 1, 1)
        at = int(torch.randint(0, 12, (), generator=draw))
        real = first.clone()
        real[..., at : at + 4, at : at + 4] = blurred[..., at : at + 4, at : at + 4] = 1.0
        return blurred, first, real

    for step in range(150):
        blurred, first, real = examples(step)
        loss = (restorer(blurred, first) - real).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    blurred, first, real = examples(1000)
    with torch.no_grad():
        error = (restorer(blurred, first) - real).square().mean()
    assert error < 0.25 * (blurred - real).square().mean()
    assert error < 0.25 * (first - real).square().mean()


def test_pairs_show_the_same_moment(make_world_model, push_episodes, monkeypatch):
    """Where the model is replaced by the truth, an imagined image is what the codec makes of its real one."""
    model = make_world_model(memory_frames=3, chunk_length=6, frame_stride=2)

    def truth(model, state, batch, chunk, generator):
        frames = model.config.dynamics.chunk_frames
        real = batch.frames[:, chunk * frames : (chunk + 1) * frames]
        return model.remember(state, model.codec.encode(to_unit(real)), batch.commands), torch.empty(0)

    monkeypatch.setattr(restorer_training, "imagine_chunk", truth)
    pairs = imagine_pairs(model, push_episodes, CONFIG, seed=0, series="restorer")
    with torch.no_grad():
        through = to_uint8(model.codec.decode(model.codec.encode(to_unit(pairs.real)[:, None])))[:, 0]
    assert (pairs.imagined.int() - through.int()).abs().max() <= 1
    starts = {tuple(e.frames[0, 0].flatten().tolist()) for e in push_episodes}
    assert {tuple(frame.flatten().tolist()) for frame in pairs.first} == starts
    assert len(pairs) > 2 * len(push_episodes)
    assert len({tuple(frame.flatten().tolist()) for frame in pairs.real}) > len(push_episodes)


def test_only_recorded_frames_are_pairs(make_world_model, push_episode):
    """An episode of 5 steps gives one frame of its first chunk of 4, and one of its second only while it lasted."""
    model = make_world_model(frame_stride=1)
    pairs = imagine_pairs(model, [push_episode(0, 5)], CONFIG, seed=0, series="restorer")
    windows = [batch for batch, _ in whole_episodes(model, [push_episode(0, 5)], seed=0, series="restorer")]
    recorded = {tuple(f.flatten().tolist()) for w in windows for f in w.frames[w.valid]}
    assert {tuple(frame.flatten().tolist()) for frame in pairs.real} <= recorded
    assert len(pairs) <= 4


def test_training_lowers_its_error_and_touches_nothing_else(make_world_model, push_episodes, tmp_path):
    whole = make_world_model(restorer=8, spread=0.0)
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    fit_restorer(whole, push_episodes, CONFIG, seed=0, folder=tmp_path / "whole", log=None)
    for name, value in whole.state_dict().items():
        assert name.startswith("restorer.") or torch.equal(value, before[name])
    pairs = imagine_pairs(whole, push_episodes, CONFIG, seed=5, series="restorer")
    imagined, real, first = (to_unit(x) for x in (pairs.imagined, pairs.real, pairs.first[pairs.episode]))
    with torch.no_grad():
        error = (whole.restorer(imagined, first) - real).square().mean()
    assert error < 0.5 * (imagined - real).square().mean()


def test_what_does_not_fit_is_refused(make_world_model, push_episodes):
    with pytest.raises(SettingError, match=r"restorer\.width"):
        fit_restorer(make_world_model(), push_episodes, CONFIG, seed=0, folder=None, log=None)
    with pytest.raises(SettingError, match=r"restorer\.block must divide image_size 64"):
        VideoWorldModelConfig(restorer=RestorerConfig(width=8, block=3))
    with pytest.raises(SettingError, match="restorer needs"):
        RestorerConfig(width=-1)


def test_each_view_has_a_restorer_of_its_own():
    with initial_weights(0, "restorer"):
        both = FrameRestorer(RestorerConfig(width=8), views=2)
        for parameter in both.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
    frame, first = torch.rand(2, 6, 3, 8, 8, generator=stream(0, "views")) * 2 - 1  # rows: scene, wrist, scene, wrist …
    shown = both(frame, first)
    torch.testing.assert_close(shown[::2], both.restored(frame[::2], first[::2]))
    torch.testing.assert_close(shown[1::2], both.further[0](frame[1::2], first[1::2]))
    assert not torch.allclose(shown[1::2], both.restored(frame[1::2], first[1::2]))


def test_a_restorer_that_views_shared_becomes_one_of_each():
    one, two = FrameRestorer(RestorerConfig(width=8)), FrameRestorer(RestorerConfig(width=8), views=2)
    torch.nn.init.normal_(one.out.weight)
    shared = {f"restorer.{name}": value for name, value in one.state_dict().items()}
    found = of_each_view(shared, 2)
    two.load_state_dict({name.removeprefix("restorer."): value for name, value in found.items()})
    rows = torch.rand(2, 4, 3, 8, 8)
    torch.testing.assert_close(two(*rows), one(*rows))
    assert of_each_view(found, 2).keys() == found.keys()
    assert of_each_view(shared, 1).keys() == shared.keys()


class Counted(list):
    """Episodes that say which of them were read."""

    def __init__(self, episodes):
        super().__init__(episodes)
        self.read = []

    def __getitem__(self, place):
        self.read.append(place)
        return super().__getitem__(place)


def test_episodes_are_read_when_their_batch_is_imagined(make_world_model, push_episode):
    model = make_world_model()
    episodes = Counted(push_episode(number, 5 + number) for number in range(6))
    batches = whole_episodes(model, episodes, seed=0, series="restorer", batch=2)
    for number in range(3):
        windows = [next(batches)[0] for _ in range(2)]
        assert sorted(set(episodes.read)) == list(range(2 * number + 2))
        assert [len(batch.episode) for batch in windows] == [2, 2]
