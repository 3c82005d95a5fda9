"""Unit under test: existing weights under other settings."""

from functools import reduce

import pytest
import torch

from worldrl.core.errors import SettingError
from worldrl.core.rng import row_streams
from worldrl.world_models.video.config import CodecKind, VideoWorldModelConfig
from worldrl.world_models.video.extension import FREE, WAN_FREE, extended, extended_config
from worldrl.world_models.wan.config import WanConfig


def asking(held, **values):
    """The settings of ``held``, but for some: ``dynamics__memory_noise=0.5``."""
    config = VideoWorldModelConfig.from_json(held.to_json())
    for name, value in values.items():
        *parts, last = name.split("__")
        part = config
        for step in parts:
            part = getattr(part, step)
        setattr(part, last, value)
    return config


FREED = {
    "codec__salience": 2.0,
    "dynamics__memory_noise": 0.5,
    "dynamics__motion_weight": 1.0,
    "dynamics__sampling_steps": 5,
    "success__loss_weight": 0.7,
    "gripper__loss_weight": 0.0,
    "outcome__debounce": 1,
}


def test_what_fits_the_weights_is_taken_over(make_world_model, kind):
    model = make_world_model(kind=kind)
    wanted = asking(model.config, **FREED, dynamics__unet__offset_noise=0.1)
    changed = extended(model, wanted, seed=0)
    assert changed.config == wanted
    assert changed.dynamics.config == wanted.dynamics  # it learns and samples by them
    for name, value in model.state_dict().items():
        assert torch.equal(changed.state_dict()[name], value), name


def test_defaults_ask_for_nothing(world_model):
    assert extended(world_model, VideoWorldModelConfig(), seed=0) is world_model  # of other sizes than the defaults


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"dynamics__width": 32}, "dynamics.width=32 (16)"),
        ({"dynamics__reference": False}, "dynamics.reference=False (True)"),
        ({"dynamics__pose_map": False, "codec__channels": 8}, "codec.channels=8 (4), dynamics.pose_map=False (True)"),
        ({"outcome__width": 64}, "outcome.width=64 (128)"),
        ({"dynamics__unet__sigma_data": 1.0}, "dynamics.unet.sigma_data=1.0 (0.5)"),
    ],
)
def test_what_does_not_fit_them_is_refused_by_name(world_model, values, named):
    with pytest.raises(SettingError) as caught:
        extended_config(world_model.config, asking(world_model.config, **values, success__loss_weight=0.5))
    assert f"do not fit {named}, with their own values in brackets" in str(caught.value)


def test_a_codec_by_its_own_name_is_no_other(world_model):
    wanted = asking(world_model.config, codec__kind=CodecKind.patch)
    assert extended_config(world_model.config, wanted) == world_model.config


def test_a_restorer_is_added_but_never_changed(make_world_model):
    plain, restoring = make_world_model(), make_world_model(restorer=4)
    assert extended(plain, restoring.config, seed=0).restorer is not None
    with pytest.raises(SettingError, match=r"restorer\.width=8 \(4\)"):
        extended_config(restoring.config, asking(restoring.config, restorer__width=8))


def test_an_ensemble_grows_by_fresh_members(make_world_model, make_record):
    model = make_world_model()
    larger = extended(model, asking(model.config, outcome__ensemble_size=3), seed=5)
    assert larger.config.outcome.ensemble_size == 3
    first, second, third = ([p.detach() for p in member.parameters()] for member in larger.outcome.members)
    own = list(model.outcome.members[0].parameters())
    assert all(torch.equal(a, b) for a, b in zip(first, own, strict=True))
    for a, b in ((first, second), (second, third)):
        assert any(not torch.equal(x, y) for x, y in zip(a, b, strict=True))
    records, action = [make_record(20)] * 2, 0.1 * torch.ones(2, 4, 7)
    before, after = (
        m.imagine(m.start(records), action, generators=row_streams(0, ("n",), 2))[1] for m in (model, larger)
    )
    assert torch.equal(before.latent, after.latent)  # members of the ensemble predict, they do not imagine
    assert before.uncertainty.abs().max() == 0 < after.uncertainty.min()
    with pytest.raises(SettingError, match=r"outcome\.ensemble_size=2 \(3\)"):
        extended_config(larger.config, asking(larger.config, outcome__ensemble_size=2))


def test_every_free_setting_is_one():
    for names, config in ((FREE, VideoWorldModelConfig()), (WAN_FREE, WanConfig())):
        for name in names:
            value = reduce(getattr, name.split("."), config)
            assert isinstance(value, bool | int | float | str), name
