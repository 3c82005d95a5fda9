"""Verify a dataset on disk against its journal, and copy its verified prefix to a new folder; all is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from worldrl.core.errors import ArtefactError
from worldrl.data.lerobot.durable import append_durably, write_durably
from worldrl.data.lerobot.format import JOURNAL_PATH, DatasetHeader, EpisodeRecord, data_path, episode_digest
from worldrl.data.lerobot.journal import read_journal_prefix, seal
from worldrl.data.lerobot.metadata import derived_files, is_current, write_metadata
from worldrl.data.lerobot.reader import read_episode, read_verified_bytes
from worldrl.data.lerobot.rows import episode_columns, episode_stats


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a dataset."""

    file: str  # relative to the dataset
    problem: str  # what is wrong, and what to do
    episode: int | None = None  # which episode it concerns, if one


def check_dataset(folder: Path | str) -> list[Finding]:
    """Look for everything that could be wrong with a dataset, damaged episodes first; read-only.

    No findings mean that every byte is what was recorded. ArtefactError without a dataset of worldrl or a readable
    header.
    """
    folder = Path(folder)
    journal, problem = read_journal_prefix(folder)
    found = [(record, episode_problem(folder, journal.header, record)) for record in journal.records]
    findings = [Finding(str(data_path(r.index)), text, r.index) for r, text in found if text is not None]
    if problem is not None:
        return [*findings, Finding(str(JOURNAL_PATH), str(problem), len(journal.records))]
    return [*findings, *_folder_findings(folder, journal.header, journal.records)]


def episode_problem(folder: Path, header: DatasetHeader, record: EpisodeRecord) -> str | None:
    """Return what is wrong with one episode, or None."""
    try:
        episode = read_episode(folder, header, record)
    except ArtefactError as error:
        return str(error)
    if (episode_digest(episode), episode.success) != (record.content, record.success):
        return "the decoded episode is not the one that was recorded; leave it out"
    stats = episode_stats(episode, episode_columns(episode, record, header))
    if not _same_stats(stats, dict(record.stats)):
        return "the journal's statistics are not those of the data; leave it out"
    return None


def repair_dataset(folder: Path | str, target: Path | str) -> int:
    """Copy the longest verified prefix into a new folder, and return its length; the damaged one is never touched.

    ArtefactError where the header cannot be read, or ``target`` is not empty.
    """
    folder, target = Path(folder), Path(target)
    if target.exists() and any(target.iterdir()):
        raise ArtefactError(f"{target}: not empty; repair_dataset writes into a new folder")
    journal, _ = read_journal_prefix(folder)
    write_durably(target / JOURNAL_PATH, seal(journal.header.to_json()))
    kept: list[EpisodeRecord] = []
    for record in journal.records:
        if episode_problem(folder, journal.header, record) is not None:
            break
        path = data_path(record.index)
        write_durably(target / path, read_verified_bytes(folder / path, record))
        append_durably(target / JOURNAL_PATH, seal(record.to_json()))
        kept.append(record)
    write_metadata(target, journal.header, kept)
    return len(kept)


def _folder_findings(folder: Path, header: DatasetHeader, records: tuple[EpisodeRecord, ...]) -> Iterator[Finding]:
    listed = {folder / data_path(record.index) for record in records}
    for path in sorted(set(folder.glob("data/*/*.parquet")) - listed):
        text = "not listed in the journal: an episode in flight when its writer died, or the journal was cut"
        yield Finding(str(path.relative_to(folder)), f"{text}; finalize_dataset removes the former")
    for path, expected in derived_files(header, records).items():
        if not is_current(folder / path, expected):
            yield Finding(str(path), "missing, or not what the journal implies; finalize_dataset derives it again")


def _same_stats(a: dict[str, dict[str, list[float]]], b: dict[str, dict[str, list[float]]]) -> bool:
    """Compare up to rounding: sums may be added in another order by another numpy."""
    if a.keys() != b.keys():
        return False
    return all(np.allclose(a[column][name], b[column][name], atol=1e-6) for column in a for name in a[column])
