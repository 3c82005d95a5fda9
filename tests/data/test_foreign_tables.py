"""Tables of a LeRobotDataset of others that disagree, episodes that cannot be read, and the lines that leave them out.

Units under test: ``worldrl.data.lerobot.external.files``, ``foreign_info``, ``foreign_table``, ``foreign_selection`` and ``foreign_rows``
through ``EpisodeDataset.open``. Every mend that an error prints is followed.
"""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from worldrl.core.errors import ArtefactError, SettingError, WorldrlError
from worldrl.core.storage.jsonfile import read_json
from worldrl.data.lerobot.dataset import EpisodeDataset
from worldrl.data.lerobot.external import files as foreign_files
from worldrl.data.lerobot.external.files import file_of
from worldrl.data.lerobot.format import EPISODES_PATH, data_path

SCENE, WRIST = "observation.images.image", "observation.images.image2"
PLATE, STOVE = "put the bowl on the plate", "turn on the stove"
DATA, EPISODES, INFO = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet", "meta/info.json"
MEND = re.compile(r'write "leave_out": (\[[\d, ]+\]) to (/\S+worldrl\.json)$')


@pytest.fixture(scope="module")
def demos(libero_demo):
    return [libero_demo(0), libero_demo(1, rows=20, sentence=STOVE), libero_demo(2, rows=30)]


@pytest.fixture
def folder(tmp_path, demos, publish_lerobot):
    return publish_lerobot(tmp_path / "libero", demos)


def change(file: Path, **columns: Any) -> None:
    """Replace values of a table's columns: a function of the old ones each."""
    table = pq.read_table(file)
    for name, make in columns.items():
        name = name.replace("__", "/")
        table = table.set_column(table.column_names.index(name), name, pa.array(make(table[name].to_pylist())))
    pq.write_table(table, file)


def state(folder: Path, **values: Any) -> None:
    file = folder / "worldrl.json"
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | values))


def inform(folder: Path, **values: Any) -> None:
    (folder / INFO).write_text(json.dumps(json.loads((folder / INFO).read_text()) | values))


def read(folder: Path) -> list[int]:
    """Open a folder and decode all of it; return the episodes' numbers."""
    return [episode.meta["index"] for episode in EpisodeDataset.open(folder)]


def refused(folder: Path) -> str:
    with pytest.raises(WorldrlError) as error:
        read(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def followed(folder: Path) -> list[int]:
    """Follow the printed line, and return the episodes that are read then."""
    text = refused(folder)
    match = MEND.search(text)
    assert match, text
    assert Path(match[2]) == folder / "worldrl.json"
    state(folder, leave_out=json.loads(match[1]))
    return read(folder)


# --- tables that disagree ---


@pytest.mark.parametrize("marked", [False, True])
def test_rows_without_an_entry_in_the_episode_table_are_never_left_out_unasked(
    tmp_path, demos, publish_lerobot, marked
):
    """A recorder that was killed before it wrote its table; the third episode's rows, or its whole file, are there."""
    if marked:
        demos = [{**demo, "next.success": np.arange(len(demo["action"])) == 9} for demo in demos]
    for name, files in (("one", (3,)), ("two", (2, 1))):
        folder = publish_lerobot(tmp_path / name, demos, files=files)
        pq.write_table(pq.read_table(folder / EPISODES).slice(0, 2), folder / EPISODES)
        inform(folder, total_episodes=2, total_frames=44)
        assert re.search(
            r"file-00\d\.parquet: episode 2 has 30 rows here, and the episode table does not", refused(folder)
        )
        assert followed(folder) == [0, 1]


def test_counts_that_differ_have_a_mend_for_ones_own_recording(folder):
    pq.write_table(pq.read_table(folder / EPISODES).slice(0, 2), folder / EPISODES)
    text = refused(folder)
    for part in (
        "total_episodes is 3, the episode table has 2",
        "hf download",
        "your own recording, correct this file",
    ):
        assert part in text
    assert followed(folder) == [0, 1]
    state(folder, leave_out=[])
    inform(folder, total_episodes=2, total_frames=44)
    assert "episode 2 has 30 rows here" in refused(folder)
    inform(folder, total_episodes=2, total_frames=45)
    assert "total_frames is 45, the episode table has 44" in refused(folder)


def test_an_episode_removed_from_the_table_by_hand_is_named(folder):
    table = pq.read_table(folder / EPISODES)
    pq.write_table(pa.concat_tables([table.slice(0, 1), table.slice(2)]), folder / EPISODES)
    inform(folder, total_episodes=2, total_frames=54)
    assert "meta/episodes: episode 1 is missing in the episode table" in refused(folder)
    assert followed(folder) == [0, 2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"total_frames": "x"}, "total_frames: Input should be a valid integer"),
        ({"total_episodes": "3"}, "total_episodes: Input should be a valid integer, got '3'"),
        ({"fps": 0}, "fps must be above 0 and at most 10000, got 0"),
        ({"fps": "20"}, "fps: Input should be a valid number, got '20'"),
        ({"features": []}, "features: Input should be an object"),
        ({"features": {"action": [7]}}, "features.action must have dtype and shape"),
        ({"features": {"action": {"dtype": "float32", "shape": [7.5]}}}, "features.action: shape.0"),
        (
            {"features": {SCENE: {"dtype": "image", "shape": [10**9, 16, 3]}}},
            f"features.{SCENE}: shape must be sizes from 1 to",
        ),
    ],
)
def test_fields_of_another_type_are_named(folder, values, message):
    inform(folder, **values)
    text = refused(folder)
    assert f"info.json: {message}" in text
    assert "correct this file" in text


def test_whole_floats_of_pandas_are_numbers(folder):
    change(
        folder / EPISODES,
        **dict.fromkeys(("data__chunk_index", "length", "episode_index"), lambda v: [float(x) for x in v]),
    )
    assert read(folder) == [0, 1, 2]
    change(folder / EPISODES, data__chunk_index=lambda v: [0.0, 0.5, 0.0])
    assert "episode 1, field 'data/chunk_index' must be a whole number, got 0.5" in refused(folder)
    assert followed(folder) == [0, 2]


def test_nothing_where_a_number_is_due_is_named(folder):
    change(folder / EPISODES, length=lambda v: [v[0], None, v[2]], tasks=lambda v: [None, *v[1:]])
    assert "episode 0, field 'tasks' must be one instruction, got None (the first of 2 such episodes)" in refused(
        folder
    )
    assert followed(folder) == [2]
    change(folder / EPISODES, episode_index=lambda v: [0, None, 2])
    assert "row 1, field 'episode_index' must be a whole number, got None" in refused(folder)


def test_more_numbers_a_row_than_stated_are_refused(folder):
    """Taken without the last one, the gripper's column would be another one."""
    change(folder / DATA, action=lambda rows: [[*row[:6], 0.0, row[6]] for row in rows])
    assert "episode 0, field 'action' has 8 numbers at row 0, info.json says 7; if the rows are right" in refused(
        folder
    )
    info = json.loads((folder / INFO).read_text())
    info["features"]["action"]["shape"] = [8]
    inform(folder, **info)
    assert "the robot is unknown (robot_type 'panda', 8 numbers of state, 8 of action" in refused(folder)
    change(folder / DATA, action=lambda rows: [[*row[:6], row[7]] if i else None for i, row in enumerate(rows)])
    info["features"]["action"]["shape"] = [7]
    inform(folder, **info)
    assert "field 'action' is missing at row 0" in refused(folder)


@pytest.mark.parametrize(
    ("name", "wrap", "message"),
    [
        ("action", lambda row: [row], "field 'action' is list<.*> and no row of numbers at row 0"),
        ("action", str, "field 'action' is string and no row of numbers"),
        ("task_index", lambda task: [task], r"field 'task_index': .* means \[.*'None'\]"),
        ("frame_index", lambda row: [row], "in the order of frame_index"),
        ("episode_index", lambda index: [index], "field 'episode_index' must be a whole number in every row"),
    ],
)
def test_columns_of_another_type_are_named(folder, name, wrap, message):
    change(folder / DATA, **{name: lambda rows: [wrap(row) for row in rows]})
    assert re.search(message, refused(folder))


def test_flags_are_flags_and_are_listed(tmp_path, demos, publish_lerobot):
    marked = [{**demo, "next.success": np.arange(len(demo["action"])) == 9} for demo in demos]
    folder = publish_lerobot(tmp_path / "marked", marked)
    change(folder / DATA, **{"next.success": lambda flags: [7, *map(int, flags[1:])]})
    assert "episode 0, field 'next.success' is neither true nor false at row 0" in refused(folder)
    assert followed(folder) == [1, 2]
    info = json.loads((folder / INFO).read_text())
    del info["features"]["next.success"]
    inform(folder, **info)
    assert "features does not list ['next.success'], which the tables have" in refused(folder)


# --- one bad episode ---


@pytest.mark.parametrize("length", [0, 1])
def test_an_episode_that_is_too_short_does_not_close_the_folder(folder, length):
    change(folder / EPISODES, length=lambda v: [v[0], length, v[2]])
    assert f"file-000.parquet: episode 1 has {length} rows, and at least 2 are needed" in refused(folder)
    assert followed(folder) == [0, 2]
    data = EpisodeDataset.open(folder)
    assert (len(data), data[1].meta["lerobot"]["leave_out"]) == (2, [1])


def test_two_instructions_in_an_episode_stop_only_who_reads_it(folder):
    change(folder / EPISODES, tasks=lambda v: [[PLATE, "lift it"], *v[1:]])
    assert "episode 0, field 'tasks' must be one instruction, got ['put the bowl on the plate', 'lift it']" in refused(
        folder
    )
    inform(folder, total_frames=75)
    state(folder, tasks={PLATE: "put"})
    assert "episode 0" in refused(folder)
    state(folder, tasks={STOVE: "turn_on"})
    assert read(folder) == [1]
    state(folder, tasks={})
    assert followed(folder) == [1, 2]


def test_numbers_that_are_not_finite_name_their_episode(folder):
    change(folder / DATA, action=lambda rows: [[np.nan] * 7 if i in (3, 50) else row for i, row in enumerate(rows)])
    assert "episode 0, field 'action' is not finite at row 3 (the first of 2 such episodes)" in refused(folder)
    assert followed(folder) == [1]
    assert EpisodeDataset.open(folder).records[0].index == 1


def test_an_episode_found_bad_when_it_is_decoded_is_left_out_like_others(tmp_path, demos, publish_lerobot):
    folder = publish_lerobot(tmp_path / "films", demos, files=(1, 2), films=(1, 1, 1))
    for number in (0, 1):
        (folder / f"videos/{SCENE}/chunk-000/file-{number:03d}.mp4").write_bytes(b"no film")
    assert "field 'observation.images.image': damaged: cannot be read" in refused(folder)
    state(folder, leave_out=[0])
    assert '"leave_out": [0, 1]' in refused(folder)
    assert followed(folder) == [2]
    (folder / f"videos/{SCENE}/chunk-000/file-002.mp4").unlink()
    assert "file-002.mp4: missing" in refused(folder)


def test_a_missing_data_file_stops_only_its_own_episodes(tmp_path, demos, publish_lerobot):
    folder = publish_lerobot(tmp_path / "parts", demos, files=(2, 1))
    (folder / DATA).unlink()
    assert "file-000.parquet: missing" in refused(folder)
    assert followed(folder) == [2]
    state(folder, leave_out=[], tasks={STOVE: "turn_on"})
    assert "file-000.parquet: missing" in refused(folder)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"leave_out": 3}, "leave_out must be a list of episode numbers, for example [3, 7], got 3"),
        ({"leave_out": [True]}, "leave_out must be a list of episode numbers"),
        ({"leave_out": [-1]}, "leave_out must be a list of episode numbers"),
        ({"leave_out": [1.0]}, "leave_out must be a list of episode numbers"),
        ({"leave_out": [1, 30]}, "leave_out: there is no episode 30; the last one is 2"),
        ({"leave_out": [0, 1, 2]}, "tasks and leave_out keep none of the 3 episodes"),
        ({"leave_out": [1], "tasks": {STOVE: "x"}}, "tasks and leave_out keep none"),
        ({"leave_ou": [1]}, "unknown key 'leave_ou'; did you mean 'leave_out'"),
    ],
)
def test_what_leave_out_cannot_be(folder, stated, message):
    state(folder, **stated)
    with pytest.raises(SettingError, match=re.escape(message)):
        EpisodeDataset.open(folder)


def test_episodes_that_are_left_out_do_not_change_the_others(folder):
    whole = EpisodeDataset.open(folder)
    state(folder, leave_out=[0, 1])
    part = EpisodeDataset.open(folder)
    np.testing.assert_array_equal(part[0].frames, whole[2].frames)
    np.testing.assert_array_equal(part[0].action, whole[2].action)
    assert part.fingerprint not in (whole.fingerprint, whole.subset([2]).fingerprint)


# --- depth cameras ---


@pytest.mark.parametrize("channels", [1, 3])
def test_a_depth_camera_is_read_by_name_only(tmp_path, demos, publish_lerobot, channels):
    name = "observation.images.wrist_depth"
    plain = [{key: value for key, value in demo.items() if key != WRIST} for demo in demos]
    folder = publish_lerobot(tmp_path / "deep", [{**demo, name: demo[SCENE]} for demo in plain])
    info = json.loads((folder / INFO).read_text())
    info["features"][name] |= {"shape": [16, 16, channels], "info": {"is_depth_map": channels == 3}}
    inform(folder, **info)
    text = refused(folder)
    assert f"['{name}'] show depth or other channels than colour" in text
    assert f'"cameras": {{"scene": "{SCENE}"}}' in text
    state(folder, **json.loads(text[text.rindex("for example {") + len("for example ") :]))
    assert EpisodeDataset.open(folder)[0].cameras == ("scene",)
    state(folder, cameras={"scene": SCENE})
    assert EpisodeDataset.open(folder)[0].cameras == ("scene",)
    state(folder, cameras={"scene": SCENE, "wrist": name})
    if channels == 3:
        assert EpisodeDataset.open(folder)[0].cameras == ("scene", "wrist")
    else:
        assert "cameras must be colour cameras; observation.images.wrist_depth has the shape (16, 16, 1)" in refused(
            folder
        )


def test_films_of_cameras_that_are_not_named_may_be_missing(tmp_path, demos, publish_lerobot):
    folder = publish_lerobot(tmp_path / "films", demos, films=(3,))
    (folder / f"videos/{WRIST}/chunk-000/file-000.mp4").unlink()
    change(folder / EPISODES, **{f"videos__{WRIST}__from_timestamp": lambda v: [None, *v[1:]]})
    assert "from_timestamp' must be seconds, got None" in refused(folder)
    state(folder, cameras={"scene": SCENE})
    assert read(folder) == [0, 1, 2]


def test_a_camera_that_only_the_tables_have_is_not_dropped(tmp_path, demos, publish_lerobot):
    """Without the main camera in ``info.json``, the one of the wrist would be taken for it."""
    for name, films in (("rows", None), ("films", (3,))):
        folder = publish_lerobot(tmp_path / name, demos, films=films)
        info = json.loads((folder / INFO).read_text())
        del info["features"][SCENE]
        inform(folder, **info)
        assert f"features does not list ['{SCENE}'], which the tables have" in refused(folder)
        state(folder, cameras={"scene": WRIST})
        assert read(folder) == [0, 1, 2]


def test_a_film_that_ends_before_its_rows_is_refused(tmp_path, demos, publish_lerobot):
    """Starts that were swapped show another episode; the ends tell."""
    folder = publish_lerobot(tmp_path / "films", demos, films=(3,))
    change(folder / EPISODES, **{f"videos__{SCENE}__from_timestamp": lambda v: [v[1], v[0], v[2]]})
    message = "episode 0 is said to lie from 2.400 to 2.400 s, which is too short for 24 rows"
    assert message in refused(folder)
    state(folder, leave_out=[0])  # episode 1 is said to begin where episode 0 is
    assert message in refused(folder)


# --- which files may be read ---


@pytest.mark.parametrize(
    "pattern",
    [
        "{chunk_index:999999999d}", "{chunk_index:10d}", "{chunk_index.real}", "{chunk_index[0]}", "{chunk_index!r}", "{0}",
        "{episode_index}", "{chunk_index:{file_index}}", "{chunk_index:03f}", "{video_key:9}", "{", "x" * 201, "",
        "/etc/{chunk_index}", "../data/{file_index:03d}", "data/../../{file_index}", "data\u0000/{file_index}", "a\\{file_index}",
    ],
)  # fmt: skip
def test_patterns_name_files_inside_the_folder_only(folder, pattern):
    inform(folder, data_path=pattern)
    text = refused(folder)
    assert "info.json: field 'data_path' is" in text
    assert len(text) < 900
    with pytest.raises(ArtefactError, match="field 'video_path'"):
        file_of(folder, f"{folder / INFO}: field 'video_path'", pattern, (0, 0), "k")


def test_patterns_of_the_format_are_read(tmp_path):
    def named(pattern: str, key: str = "") -> str:
        return file_of(tmp_path, "x", pattern, (1, 23), key).relative_to(tmp_path).as_posix()

    assert named("data/{chunk_index:03d}/{file_index}.parquet") == "data/001/23.parquet"
    assert named("{video_key}/{chunk_index:d}-{file_index:9d}", "a b") == "a b/1-       23"
    with pytest.raises(ArtefactError, match="must name a file inside the folder"):
        named("{video_key}/x.mp4", "../..")


def test_links_out_of_the_folder_are_refused_and_the_caches_are_followed(tmp_path, demos, publish_lerobot):
    folder = publish_lerobot(tmp_path / "set", demos)
    outside = (folder / DATA).rename(tmp_path / "outside.parquet")
    (folder / DATA).symlink_to(outside)
    assert "file-000.parquet: a link to" in refused(folder)
    for name in (INFO, "worldrl.json"):
        (tmp_path / "text").write_text((folder / name).read_text() if (folder / name).exists() else "{}")
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(tmp_path / "text")
        assert f"{name}: a link to" in refused(folder)
        (folder / name).unlink()
        (folder / name).write_text((tmp_path / "text").read_text())
    (folder / "worldrl.json").unlink()
    (folder / "worldrl.json").symlink_to(tmp_path / "nowhere")
    assert "worldrl.json: missing" in refused(folder)
    (folder / "worldrl.json").unlink()
    state(folder, success="every episode")
    blobs = tmp_path / "hub/blobs"
    blobs.mkdir(parents=True)
    (folder / DATA).unlink()
    folder = folder.rename(tmp_path / "moved")
    (tmp_path / "hub/snapshots").mkdir()
    folder = folder.rename(tmp_path / "hub/snapshots/0123")
    (folder / DATA).symlink_to(outside.rename(blobs / "abc"))
    assert read(folder) == [0, 1, 2]


@pytest.fixture
def no_wait():
    """Fail instead of waiting at a pipe that is opened."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("a pipe was opened"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("no_wait")
@pytest.mark.parametrize(
    "name", [DATA, EPISODES, "meta/tasks.parquet", "data/chunk-000/file-007.parquet", "worldrl.json"]
)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_pipes_and_folders_are_no_files(folder, name, make):
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    assert f"{name}: not a regular file but a folder, pipe or device" in refused(folder)
    if name == "worldrl.json":
        with pytest.raises(ArtefactError, match="not a regular file"):
            read_json(folder / name, error=ArtefactError)


def test_a_data_file_without_an_end_beside_the_others_is_named(folder):
    """A recorder that was killed leaves a file without a footer, of which the episode table knows nothing."""
    (folder / "data/chunk-000/file-001.parquet").write_bytes((folder / DATA).read_bytes()[:500])
    assert re.search(r"file-001\.parquet: not readable as Parquet .* or move it away", refused(folder))
    (folder / "data/chunk-000/file-001.parquet").rename(folder / "away.parquet")
    assert read(folder) == [0, 1, 2]


def test_files_without_permission_are_named(folder, monkeypatch):
    def deny(*_args: Any, **_options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(foreign_files.pq, "read_table", deny)
    assert re.search(r"tasks\.parquet: cannot be read \(Permission denied\); check its permissions", refused(folder))


def test_checksums_of_pages_are_written_and_verified(folder, tmp_path, record, make_episode):
    """Without them a flipped bit in uncompressed numbers is another number."""
    table = pq.read_table(folder / DATA)
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(table, folder / DATA, **options)
    content = bytearray((folder / DATA).read_bytes())
    number = np.float32(table["action"].to_pylist()[5][0]).tobytes()
    content[content.index(number) + 1] ^= 1
    (folder / DATA).write_bytes(content)
    assert re.search(r"file-000\.parquet: not readable as Parquet \(.*(?i:crc)", refused(folder))
    ours = record(tmp_path / "ours", [make_episode(0, 5)])
    digest = EpisodeDataset.open(ours).records[0].content.encode()
    for name, text in ((data_path(0), b"IDAT"), (EPISODES_PATH, digest)):
        content = (ours / name).read_bytes()
        assert any(is_noticed(content, match.end() - 1) for match in re.finditer(re.escape(text), content))


def is_noticed(content: bytes, place: int) -> bool:
    """Whether a flipped bit fails a page's checksum; the same text may also stand in the header or the footer."""
    damaged = bytearray(content)
    damaged[place] ^= 1
    try:
        pq.read_table(pa.BufferReader(bytes(damaged)), page_checksum_verification=True)
    except OSError as error:
        return "crc" in str(error).lower()
    return False
