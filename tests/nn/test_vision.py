import pytest
import torch
from torch import nn

from worldrl.core.errors import SettingError
from worldrl.core.rng import stream
from worldrl.nn.vision import (
    ImageEncoder,
    Points,
    cell_coordinates,
    colour_jitter,
    image_to_float,
    random_offsets,
    shift,
)

COLOURS = torch.tensor([[200, 40, 40], [40, 60, 200]], dtype=torch.uint8)


def squares(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images with a red and a blue 6×6 square; which one is meant, one-hot; its centre in [-1, 1]."""
    generator = stream(seed, "squares")
    image = torch.randint(120, 150, (rows, 32, 32, 3), generator=generator, dtype=torch.uint8)
    left = torch.randint(1, 26, (rows, 2, 2), generator=generator)
    meant = torch.randint(2, (rows,), generator=generator)
    for row in range(rows):
        for square in (1 - int(meant[row]), int(meant[row])):  # the meant one is never hidden
            x, y = left[row, square].tolist()
            image[row, y : y + 6, x : x + 6] = COLOURS[square]
    centre = (left[torch.arange(rows), meant] + 3) / 16 - 1
    return image, nn.functional.one_hot(meant, 2).float(), centre


def test_the_square_that_text_names_is_found_to_a_fraction_of_a_cell():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = ImageEncoder(2, width=16, blocks=1, keypoints=8)
        head = nn.Linear(encoder.out_width, 2)
    parameters = [*encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, 4e-3)
    image, text, centre = squares(512, 0)
    for step in range(250):
        rows = torch.randint(512, (64,), generator=stream(step, "rows"))
        optimizer.param_groups[0]["lr"] = 4e-3 * (1 - step / 250)
        optimizer.zero_grad()
        nn.functional.smooth_l1_loss(head(encoder(image[rows], text[rows])), centre[rows], beta=0.1).backward()
        optimizer.step()

    image, text, centre = squares(256, 1)
    error = (head(encoder(image, text)) - centre).norm(dim=1) * 16  # pixels; a cell has 4
    assert error.median() < 1.5


def finder_of_red(*, place: bool) -> ImageEncoder:
    """An encoder whose one point is the reddest cell."""
    encoder = ImageEncoder(2, width=4, blocks=0, keypoints=1, value_width=1, place=place)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.zero_()
        encoder.stem.weight[0, 0] = 1.0  # channel 0 sums red
        encoder.stem.bias[0] = 64.0  # black everywhere gives 0
        encoder.query.bias[0] = 1e3
    return encoder


@pytest.mark.parametrize("place", [True, False])
def test_expected_point_of_a_sharp_peak_is_its_cell(place: bool):
    encoder = finder_of_red(place=place)
    image = torch.zeros(1, 32, 32, 3, dtype=torch.uint8)
    image[0, 6:14, 18:26] = 255  # exactly the window of cell (x 5, y 2)

    point = encoder(image, torch.zeros(1, 2))[0, :2]

    expected = cell_coordinates(8, 8, device=point.device, dtype=point.dtype)[2 * 8 + 5]
    torch.testing.assert_close(point, expected)


def test_points_of_a_shifted_image_are_those_before_the_shift():
    encoder = finder_of_red(place=False)
    image = torch.zeros(4, 32, 64, 3, dtype=torch.uint8)
    image[:, 14:22, 34:42] = 255
    offset = torch.tensor([[0, 0], [4, 0], [0, -8], [-12, 20]])  # whole cells
    plain, shown = encoder.find(image, torch.zeros(4, 2)), shift(image, offset)

    found = encoder.find(shown, torch.zeros(4, 2), offset=offset)

    torch.testing.assert_close(found.flat, plain.flat)
    torch.testing.assert_close(found.score.softmax(2) @ found.cells, plain.place)
    assert (encoder(shown, torch.zeros(4, 2)) - found.flat)[3].tolist()[:2] == [-40 / 64, 24 / 32]


def test_a_point_before_a_shift_differs_by_the_shift_in_half_widths():
    points = Points(torch.zeros(1, 2, 2), torch.zeros(1, 2, 1), torch.zeros(1, 2, 3), torch.zeros(3, 2))

    before = points.before_shift(torch.tensor([[3, -5]]), (32, 64))

    assert before.place.tolist() == [[[-5 / 32, 3 / 16]] * 2]
    assert before.cells.tolist() == [[[-5 / 32, 3 / 16]] * 3]


@pytest.mark.parametrize("place", [True, False])
def test_without_places_the_features_move_with_the_image(place: bool):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = ImageEncoder(2, width=8, blocks=1, place=place)
    image = torch.zeros(1, 64, 64, 3, dtype=torch.uint8)
    image[0, 26:34, 26:34] = 255
    moved = shift(image, torch.tensor([[8, -4]]))

    cells, other = (encoder.features(i, torch.ones(1, 2))[0].view(16, 16, 8) for i in (image, moved))

    same = torch.allclose(cells[4:12, 4:12], other[2:10, 5:13], atol=1e-6)
    assert same is not place


def test_coordinates_span_the_image():
    cells = cell_coordinates(2, 4, device=torch.device("cpu"), dtype=torch.float32)

    assert cells[:4].tolist() == [[-0.75, -0.5], [-0.25, -0.5], [0.25, -0.5], [0.75, -0.5]]
    assert cells[4].tolist() == [-0.75, 0.5]


def test_any_multiple_of_eight_is_accepted_and_others_refused():
    encoder = ImageEncoder(2, width=8)
    for size in ((16, 16), (24, 40)):
        assert encoder(torch.zeros(2, *size, 3, dtype=torch.uint8), torch.zeros(2, 2)).shape == (2, encoder.out_width)
    with pytest.raises(SettingError, match="multiples of 8"):
        encoder(torch.zeros(2, 20, 16, 3, dtype=torch.uint8), torch.zeros(2, 2))


def test_image_to_float_range_and_layout():
    image = torch.tensor([0, 255, 0], dtype=torch.uint8).expand(1, 8, 8, 3).contiguous()
    x = image_to_float(image)

    assert x.shape == (1, 3, 8, 8)
    assert x[0, :, 0, 0].tolist() == [-1, 1, -1]
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_shift_moves_whole_images_by_at_most_its_pixels_and_repeats_the_border():
    ramp = torch.arange(16, dtype=torch.uint8)
    image = (16 * ramp[:, None] + ramp)[None, :, :, None].repeat(300, 1, 1, 3)  # pixel value names its place

    shifted = shift(image, random_offsets(300, pixels=3, generator=stream(0, "shift"))).long()

    y, x = shifted[:, 8, 8, 0] // 16 - 8, shifted[:, 8, 8, 0] % 16 - 8
    assert set(y.tolist()) == set(x.tolist()) == set(range(-3, 4))
    assert len({(a, b) for a, b in zip(y.tolist(), x.tolist(), strict=True)}) > 40
    rows = torch.arange(16)
    for i in range(20):
        expected = 16 * (rows + y[i]).clamp(0, 15)[:, None] + (rows + x[i]).clamp(0, 15)
        assert torch.equal(shifted[i, :, :, 1], expected)


def test_jitter_changes_gains_and_offset_within_bounds_and_never_wraps():
    image = torch.full((200, 8, 8, 3), 100, dtype=torch.uint8)
    image[:, 0] = 255
    image[:, 1] = 0

    changed = colour_jitter(image, strength=0.1, generator=stream(0, "jitter")).float()

    assert (changed[:, 0] > 200).all()
    assert (changed[:, 1] < 5).all()
    assert (changed[:, 4] == changed[:, 5]).all()
    assert (changed[:, 4] - 100).abs().max() <= 100 * (1.1 * 1.05 - 1) + 3.2 + 1
    assert changed[:, 4, 4, 0].std() > 3
    assert (changed[:, 4, 4, 0] - changed[:, 4, 4, 2]).std() > 2


@pytest.mark.parametrize("augment", ["shift", "jitter"])
def test_augmentations_depend_on_their_generator_alone(augment):
    image = torch.randint(0, 256, (4, 16, 16, 3), generator=stream(0, "image"), dtype=torch.uint8)

    def run(seed: int) -> torch.Tensor:
        if augment == "shift":
            return random_offsets(4, pixels=3, generator=stream(seed, "a"))
        return colour_jitter(image, strength=0.2, generator=stream(seed, "a"))

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
