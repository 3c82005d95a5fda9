import numpy as np
import pytest

from worldrl_envs.style import STYLES, TEST_STYLES, TEXTURES, Style, beyond_sampling, get_style, sample_style

HOLD = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)


@pytest.mark.parametrize("name", sorted(set(STYLES) - {"default"}))
def test_style_changes_pixels_and_not_physics(name, make, actions):
    plain, styled = make("PlaceCubeInBin"), make("PlaceCubeInBin", style=name)
    first, _ = plain.reset(seed=2)
    second, _ = styled.reset(seed=2)
    assert not np.array_equal(first["image"], second["image"])
    for action in actions[:15]:
        plain.step(action)
        styled.step(action)
    a, b = plain.unwrapped.get_state(), styled.unwrapped.get_state()
    np.testing.assert_array_equal(a["physics"], b["physics"])


def test_set_style_returns_to_the_original(make):
    env = make()
    before = env.reset(seed=0)[0]["image"]
    env.unwrapped.set_style("cluttered")
    assert not np.array_equal(env.reset(seed=0)[0]["image"], before)
    env.unwrapped.set_style(None)
    np.testing.assert_array_equal(env.reset(seed=0)[0]["image"], before)


def test_sampled_styles_follow_the_generator():
    first, second = (sample_style(generator=np.random.default_rng(4)) for _ in range(2))
    assert first == second
    assert first != sample_style(generator=np.random.default_rng(5))


def test_sampling_never_makes_a_test_style():
    """Each test style lies beyond the sampled ranges in some field, and whatever is drawn lies within all of them."""
    assert tuple(STYLES)[1:] == TEST_STYLES
    beyond = {name: beyond_sampling(get_style(name)) for name in STYLES}
    assert [name for name, fields in beyond.items() if not fields] == ["default"]
    drawn = [sample_style(generator=np.random.default_rng(seed)) for seed in range(500)]
    assert [style for style in drawn if beyond_sampling(style)] == []
    # The test itself must tell: these are what a wider sampling drew.
    assert beyond_sampling(Style(light=1.15)) == ("light",)
    assert beyond_sampling(Style(table=(0.5, 0.2, 0.5))) == ("table",)
    assert {texture for texture in TEXTURES if beyond_sampling(Style(texture=texture))} == {"checker", "speckle"}
    # And it still reaches what it is meant to.
    assert {style.texture for style in drawn} == {"plain", "spots"}
    assert {style.distractors for style in drawn} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("kwargs", [{"texture": "wood"}, {"distractors": 7}, {"light": 0.0}])
def test_wrong_styles_are_refused(kwargs):
    with pytest.raises(ValueError, match="style"):
        Style(**kwargs)


def test_colours_of_unknown_things_are_refused(make):
    with pytest.raises(ValueError, match="nearest is 'red_cube'"):
        make(style=Style(colours={"red_cub": (1, 1, 1)}))


def test_objects_are_at_least_eight_pixels_wide(make):
    env = make()
    for index in range(5):
        image = env.reset(seed=0, options={"index": index})[0]["image"].astype(int)
        red = (image[..., 0] > 110) & (image[..., 1] < 60) & (image[..., 2] < 60)
        assert red.any(0).sum() >= 8


def test_a_sampled_style_has_a_name_that_finds_it_again(make):
    assert get_style("sampled-4") == get_style("sampled-4") != get_style("sampled-5")
    assert get_style("sampled-4").name == "sampled-4"
    with pytest.raises(ValueError, match="style"):
        get_style("sampled-x")
