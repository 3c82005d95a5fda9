"""Datasets for training: opened together, of one robot, and of the image size of a model."""

from collections.abc import Callable, Iterable, Sequence

from worldrl.core.errors import SettingError
from worldrl.core.image_fit import WAYS, Fit, ImageFit
from worldrl.core.instructions import instruction_words
from worldrl.core.observation import image_name
from worldrl.core.storage.log import console
from worldrl.core.types import Episode
from worldrl.data.lerobot.dataset import EpisodeDataset, open_recorded, require_alike
from worldrl.data.lerobot.format import OURS
from worldrl.data.windows.keyframes import keyframes

Offer = Callable[[int], str | None]  # Maps the side of square images to settings by which a model takes them, or None


def open_datasets(folders: Sequence[str], images: ImageFit | None = None) -> list[EpisodeDataset]:
    """Open datasets for joint use without decoding; ArtefactError where one is missing, damaged or does not fit."""
    datasets = [open_recorded(folder, images) for folder in folders]
    require_alike(datasets, "embodiment", "fps", "image_size", "fit")
    return datasets


def require_image_size(
    dataset: EpisodeDataset, size: int, field: str, offer: Offer = lambda _side: None, *, fit: str = ""
) -> None:
    """SettingError for images of another size than a model's (``field``), before any is decoded, with what to do.

    ``offer`` gives settings for the dataset's size, ``fit`` names the setting that brings images to the model's, if
    any.
    """
    rows, columns = dataset.image_size
    if (rows, columns) == (size, size):
        return
    mends = [
        offer(rows) if rows == columns else None,
        _other_images(dataset, size, square=rows == columns),
        f"give {fit}={', '.join(WAYS[:-1])} or {WAYS[-1]}" if fit else None,
    ]
    raise SettingError(
        f"data: the images in {dataset.source} are {columns} by {rows} pixels, {field} is {size}; "
        f"{', or '.join(mend for mend in mends if mend)}"
    )


def require_cameras(datasets: Sequence[EpisodeDataset], images: Sequence[str]) -> None:
    """SettingError, with the cameras of both, for datasets that lack the images of a model."""
    for dataset in datasets:
        recorded = [image_name(camera) for camera in dataset.cameras]
        if missing := [name for name in images if name not in recorded]:
            raise SettingError(
                f"data: {dataset.source} has no {' and no '.join(missing)}\n  the model takes {', '.join(images)} | "
                f"the data has {', '.join(recorded)}\nrecord the others (worldrl collect wrist=true), or give cameras "
                "that the data has"
            )


def require_instructions(datasets: Iterable[EpisodeDataset]) -> None:
    """SettingError, with dataset and episode, for instructions that no encoder reads."""
    for dataset in datasets:
        for record in dataset.records:
            try:
                instruction_words(record.instruction)
            except SettingError as reason:
                mend = (
                    f'write "leave_out" to {dataset.source}/{OURS}' if "lerobot" in record.meta else "record it again"
                )
                raise SettingError(f"data: {dataset.source}: episode {record.index}: {reason}, or {mend}") from reason


def _other_images(dataset: EpisodeDataset, size: int, *, square: bool) -> str:
    """How the images become ``size`` pixels where no setting says so: external ones are brought to it when read."""
    if any("lerobot" in record.meta for record in dataset.records):
        value = f"{size}" if square else f'{size}, "fit": "{Fit.letterbox}"'
        return f'write {{"image_size": {value}}} to {dataset.source}/{OURS}'
    return f"record them again with image_size={size}"


def offers(settings: str, takes: Callable[[int], object]) -> Offer:
    """Settings (with ``{side}``) by which a model takes another image size, if ``takes`` makes such a configuration."""

    def offer(side: int) -> str | None:
        try:
            return None if takes(side) is False else f"give {settings.format(side=side)}"
        except SettingError:
            return None

    return offer


def require_debounce(debounce: int, longest: int) -> None:
    """Refuse an outcome that needs more successive frames than the ``longest`` episode has; SettingError."""
    if debounce > longest:
        raise SettingError(
            f"outcome.debounce: {debounce} frames must succeed one after another, but the longest episode has {longest}; "
            "give fewer"
        )


def note_events(episodes: Iterable[Episode], what: str) -> None:
    """Print a note where no gripper changes and no contact begins in ``what``: ``event_share`` has no effect there."""
    if not any(keyframes(episode) for episode in episodes):
        console().print(
            f"note: no gripper changes and no contact begins in {what}; windows start at any frame, whatever event_share is",
            markup=False,
            soft_wrap=True,
        )
