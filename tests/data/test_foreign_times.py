"""Units under test: ``worldrl.data.lerobot.external.times`` and ``foreign_pictures``, through ``EpisodeDataset.open``.

Films are written without loss, and no two frames are alike: an image tells which frame of which episode it is.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from worldrl.core.errors import ArtefactError
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.external.times import Film, Part, require_parts, times_by_episode

SCENE = "observation.images.image"
DATA, EPISODES = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"
FPS = 20
LENGTHS = (8, 6, 7)


@pytest.fixture(scope="module")
def demos(libero_demo):
    made = [libero_demo(number, rows=rows) for number, rows in enumerate(LENGTHS)]
    return [{name: demo[name] for name in ("sentence", "observation.state", "action", SCENE)} for demo in made]


@pytest.fixture
def publish(tmp_path, demos, publish_lerobot):
    """Write a folder whose rows are some of the film's frames, at given times."""

    def write(keep=None, times=None, *, films=True, fps=FPS):
        rows = [np.asarray(kept) for kept in keep or [range(len(demo["action"])) for demo in demos]]
        shown = [{n: v if n == "sentence" else v[k] for n, v in d.items()} for d, k in zip(demos, rows, strict=True)]
        folder = publish_lerobot(
            tmp_path / str(len(list(tmp_path.iterdir()))) / "set", shown, fps=FPS, info={"fps": fps}
        )
        if films:
            whole = publish_lerobot(folder.parent / "whole", demos, fps=FPS, films=(len(demos),))
            (whole / "videos").rename(folder / "videos")
            make_film_folder(folder, whole, rows)
        at = np.concatenate([k / FPS for k in rows] if times is None else times)
        rewrite(folder / DATA, timestamp=at)
        stated = {"robot": "libero", "gripper": {"open": -1, "closed": 1}, "cameras": {"scene": SCENE}}
        (folder / "worldrl.json").write_text(json.dumps(stated | {"success": "every episode"}))
        return folder

    return write


def make_film_folder(folder, whole, rows):
    """Take the films' columns and features of ``whole`` into a folder with images in its rows."""
    table = pq.read_table(whole / EPISODES)
    for name in [name for name in table.column_names if name.startswith("videos/")]:
        rewrite(folder / EPISODES, **{name: table[name]})
    rewrite(folder / EPISODES, length=[len(kept) for kept in rows])
    pq.write_table(pq.read_table(folder / DATA).drop_columns([SCENE]), folder / DATA)
    info, other = (json.loads((place / "meta/info.json").read_text()) for place in (folder, whole))
    told = info | {"features": other["features"], "video_path": other["video_path"]}
    (folder / "meta/info.json").write_text(json.dumps(told))


def rewrite(file, **columns):
    table = pq.read_table(file)
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        table = table.append_column(name, values) if place < 0 else table.set_column(place, name, pa.array(values))
    pq.write_table(table, file)


def shift(folder, at, *, start=0.0, end=0.0, film=SCENE):
    """Move an episode's part of the film, in frames."""
    table = pq.read_table(folder / EPISODES)
    for part, frames in (("from_timestamp", start), ("to_timestamp", end)):
        values = table[f"videos/{film}/{part}"].to_pylist()
        values[at] += frames / FPS
        rewrite(folder / EPISODES, **{f"videos/{film}/{part}": values})


def state(folder, **keys):
    """Write keys of ``worldrl.json``."""
    file = folder / "worldrl.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def frames_shown(demos, episode):
    """Which frame of which episode each image is."""
    known = {frame.tobytes(): (n, place) for n, demo in enumerate(demos) for place, frame in enumerate(demo[SCENE])}
    return [known[image.tobytes()] for image in episode.view("scene")]


# --- times of rows ---


@pytest.mark.parametrize("lead", [0, 3])
def test_the_film_is_shown_at_the_rows_times(publish, demos, lead):
    """Idle frames were cut off at the beginning of each episode, or none; ``frame_index`` counts from 0 either way."""
    data = EpisodeDataset.open(publish([range(lead, rows) for rows in LENGTHS]))
    for number, rows in enumerate(LENGTHS):
        assert frames_shown(demos, data[number]) == [(number, place) for place in range(lead, rows)]


def test_frames_after_the_last_row_belong_to_nobody(publish, demos):
    data = EpisodeDataset.open(publish([range(rows - 2) for rows in LENGTHS]))
    for number, rows in enumerate(LENGTHS):
        assert frames_shown(demos, data[number]) == [(number, place) for place in range(rows - 2)]


WRONG = {
    "a gap": (
        [0, 0.05, 0.10, 0.25, 0.30, 0.35, 0.40, 0.45],
        "row 3 is at 0.250 s, row 2 at 0.100 s.*make two episodes of it, the second from row 3 on",
    ),
    "reversed": (np.arange(8)[::-1] / FPS, "row 1 is at 0.300 s, row 0 at 0.350 s.*write row / 20 as their timestamp"),
    "a time twice": ([0, 0.05, 0.10, 0.10, 0.15, 0.20, 0.25, 0.30], "row 3 is at 0.100 s, row 2 at 0.100 s"),
    "no number": ([0, 0.05, np.nan, *np.arange(3, 8) / FPS], "row 2 is at nan s"),
    "infinite": ([np.inf, *np.arange(1, 8) / FPS], "row 0 is at inf s; rows must"),
    "seconds of a clock, in float32": (
        np.float64(np.float32(1.7e9 + np.arange(8) / FPS)),
        "row 1 is at 1700000000.*write row / 20 as",
    ),
    "another rate": (np.arange(8) / 30, r'1/20 s apart.*if each action lasts 1/30 s, write "fps": 30 to meta/info'),
    "a drift": (np.arange(8) / 18, "row 4 is at 0.222 s"),
    "every second row": (np.arange(8) / 10, r'if each action lasts 1/10 s, write "fps": 10 to meta/info.json'),
}


@pytest.mark.parametrize("films", [True, False])
@pytest.mark.parametrize("case", list(WRONG))
def test_rows_that_are_not_one_step_apart_are_refused_with_the_row(publish, case, films):
    times, message = WRONG[case]
    folder = publish(times=[times, *(np.arange(rows) / FPS for rows in LENGTHS[1:])], films=films)
    with pytest.raises(ArtefactError, match=message) as error:
        EpisodeDataset.open(folder)[0]
    assert f"{folder / DATA}: episode 0, field 'timestamp'" in str(error.value)
    assert '"leave_out": [0]' in str(error.value)


def test_a_lower_rate_that_info_json_states_is_read_off_the_film(publish, demos):
    """The mend of every second row."""
    data = EpisodeDataset.open(publish([range(0, rows, 2) for rows in LENGTHS], fps=10))
    for number, rows in enumerate(LENGTHS):
        assert frames_shown(demos, data[number]) == [(number, place) for place in range(0, rows, 2)]
    data = EpisodeDataset.open(publish([range(0, rows, 4) for rows in LENGTHS], fps=5))
    assert frames_shown(demos, data[0]) == [(0, 0), (0, 4)]


def test_a_clock_of_images_in_the_rows_may_begin_anywhere(publish, demos):
    """In a film there is no frame at 1.7e9 s."""
    times = [1.7e9 + np.arange(rows) / FPS for rows in LENGTHS]
    data = EpisodeDataset.open(publish(times=times, films=False))
    assert frames_shown(demos, data[1]) == [(1, place) for place in range(LENGTHS[1])]
    with pytest.raises(
        ArtefactError, match=r"its rows are at 1700000000\.000 to .*write timestamps from 0 to 0\.350 s"
    ):
        EpisodeDataset.open(publish(times=times))[1]


@pytest.mark.parametrize(("frames", "fits"), [(0.2, True), (-0.2, True), (0.3, False), (-0.3, False), (0.5, False)])
def test_a_time_belongs_to_the_frame_within_a_quarter(publish, demos, frames, fits):
    """Of the middle rows; the first and the last would leave the episode's part of the film."""
    times = [np.arange(rows) / FPS for rows in LENGTHS]
    times[1][2:4] += frames / FPS
    folder = publish(times=times)
    if fits:
        assert frames_shown(demos, EpisodeDataset.open(folder)[1]) == [(1, place) for place in range(LENGTHS[1])]
    else:
        with pytest.raises(
            ArtefactError, match=r"row 2 (is at 0\.\d+ s of the film, which has no frame|is at 0\.\d+ s, row)"
        ):
            EpisodeDataset.open(folder)[1]


# --- parts of a film ---


@pytest.mark.parametrize(
    ("at", "start", "end", "message"),
    [
        (0, 0, -1, "episode 0 is said to lie from 0.000 to 0.350 s, which is too short for 8 rows at 20 a second"),
        (1, 1, 0, "episode 1 is said to lie from 0.450 to 0.700 s, which is too short for 6 rows"),
        (1, -1, 0, "episode 1 begins at 0.350 s, before episode 0 ends at 0.400 s"),
        (1, 0, 1, "episode 2 begins at 0.700 s, before episode 1 ends at 0.750 s"),
        (2, 0, 1, "the film ends at 1.050 s, its last episode, 2, at 1.100 s"),
        (2, 1, 1, "the film ends at 1.050 s, its last episode, 2, at 1.100 s"),
    ],
)
def test_a_part_of_a_film_that_is_another_episodes_is_refused(publish, at, start, end, message):
    folder = publish()
    shift(folder, at, start=start, end=end)
    data = EpisodeDataset.open(folder)
    for number in range(len(LENGTHS)):  # one wrong row of the table leaves the film of the others uncertain
        with pytest.raises(ArtefactError) as error:
            data[number]
        assert message in str(error.value)
        assert "write from_timestamp and to_timestamp" in str(error.value)


def test_rows_that_were_dropped_without_their_frames_are_refused(publish):
    """The table was made of the rows that are left: each episode would begin with the last frames of the one before."""
    folder = publish([range(rows - 1) for rows in LENGTHS])
    ends = np.cumsum(np.array(LENGTHS) - 1) / FPS
    spans = {"from_timestamp": [0.0, *ends[:-1]], "to_timestamp": ends}
    rewrite(folder / EPISODES, **{f"videos/{SCENE}/{part}": values for part, values in spans.items()})
    with pytest.raises(ArtefactError, match=r"the film ends at 1\.050 s, its last episode, 2, at 0\.900 s"):
        EpisodeDataset.open(folder)[1]


def test_a_neighbours_rows_decide_where_it_ends(publish):
    """Episode 0 has no first frames, so that its rows would also fit into a part that is a frame shorter."""
    folder = publish([range(2, LENGTHS[0]), *map(range, LENGTHS[1:])])
    shift(folder, 0, end=-1)
    shift(folder, 1, start=-1)
    message = r"episode 0 is said to lie from 0\.000 to 0\.350 s; its rows are at 0\.100 to"
    with pytest.raises(ArtefactError, match=message):
        EpisodeDataset.open(folder)[1]
    sentence = pq.read_table(folder / EPISODES)["tasks"].to_pylist()[0][0]
    pq.write_table(pa.table({"task_index": [0, 1], "task": [sentence, "wait"]}), folder / "meta/tasks.parquet")
    rewrite(folder / EPISODES, tasks=[["wait"], [sentence], [sentence]])
    rewrite(folder / DATA, task_index=[1] * (LENGTHS[0] - 2) + [0] * sum(LENGTHS[1:]))
    state(folder, tasks={sentence: "put"})
    with pytest.raises(ArtefactError, match=message):  # also where only the task of the others is read
        EpisodeDataset.open(folder)[0]


@pytest.mark.parametrize(("at", "start", "end"), [(0, -1, 0), (1, np.nan, 0), (1, 0, np.inf)])
def test_impossible_parts_are_refused_at_once(publish, at, start, end):
    folder = publish()
    shift(folder, at, start=start, end=end)
    with pytest.raises(ArtefactError, match="_timestamp' must be seconds, got"):
        EpisodeDataset.open(folder)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_episodes_that_are_left_out_keep_their_place_in_the_film(publish, demos, left):
    """Also where their rows' times are no times; a wrong place leaves the others uncertain."""
    times = [np.arange(rows) / FPS for rows in LENGTHS]
    times[left][2] = 77
    folder = publish(times=times)
    with pytest.raises(ArtefactError, match=rf'"leave_out": \[{left}\] to'):
        EpisodeDataset.open(folder)[left]
    with pytest.raises(ArtefactError, match=rf'episode {left} is said to lie .*"leave_out": \[{left}\] to'):
        EpisodeDataset.open(folder)[(left + 1) % 3]
    state(folder, leave_out=[left])
    for episode in EpisodeDataset.open(folder):
        number = frames_shown(demos, episode)[0][0]
        assert number != left
        assert frames_shown(demos, episode) == [(number, place) for place in range(LENGTHS[number])]
    shift(folder, left, end=-1)
    with pytest.raises(ArtefactError, match=rf"episode {left} is said to lie .*, which is too short for"):
        EpisodeDataset.open(folder)[0]


def test_a_film_may_continue_where_an_episode_is_missing_in_the_table():
    """A stopped recorder leaves rows and frames."""
    film, parts = Film(0.95, 20), [Part(0, 10, 0.0, 0.5, 0.0, 0.45)]
    require_parts(parts, film, 20, "film", longer=True)
    with pytest.raises(ArtefactError, match=r"the film ends at 1\.000 s, its last episode, 0, at 0\.500 s"):
        require_parts(parts, film, 20, "film", longer=False)


def test_times_are_gathered_by_episode():
    found = times_by_episode(np.array([4.0, 2, 4, 2]), np.array([0.3, np.nan, 0.1, 0.2]))
    assert found == {2: (0.2, 0.2), 4: (0.1, 0.3)}


CASES, MOVES = 60, (1, -1, 2, -2, 0.2, -0.2, 0.5, -0.5)


def test_no_image_is_of_another_episode(publish, demos):
    """Parts and times moved at random: an image is the film's frame at its row's time, or there is an error."""
    folder = publish([range(1, LENGTHS[0]), *map(range, LENGTHS[1:])])
    first = np.cumsum([0, *LENGTHS[:-1]])
    shown = refused = 0
    for case in range(CASES):
        draw = np.random.default_rng(case)
        moved, choice = np.zeros(9), draw.permutation(9)[: draw.integers(0, 4)]
        moved[choice] = draw.choice(MOVES, len(choice))
        starts, ends, times = np.split(moved, 3)
        times[0] = max(times[0], 0)  # else rows and table would agree about frames that were cut off
        places = [np.arange(n == 0, length) + times[n] for n, length in enumerate(LENGTHS)]
        spans = {"from_timestamp": (first + starts) / FPS, "to_timestamp": (first + LENGTHS + ends) / FPS}
        rewrite(folder / EPISODES, **{f"videos/{SCENE}/{part}": values for part, values in spans.items()})
        rewrite(folder / DATA, timestamp=np.concatenate(places) / FPS)
        for number, place in enumerate(places):
            try:
                got = frames_shown(demos, EpisodeDataset.open(folder)[number])
            except ArtefactError:
                refused += 1
                assert starts[0] < 0 or np.abs(moved).sum() > 0.25, case
                continue
            shown += 1
            expected = np.rint(first[number] + starts[number] + place).astype(int)  # what lerobot shows
            assert [first[n] + at for n, at in got] == expected.tolist(), (case, number)
            assert {n for n, _ in got} == {number}, (case, number)
    assert shown > CASES / 4
    assert refused > CASES
