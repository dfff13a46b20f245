"""Ranges of the log without Spark: splits, what vanishes between planning and reading, marks that come late."""

import shutil
from itertools import pairwise
from pathlib import Path
from threading import Timer

import pytest

from log.logkit import ORIGINS
from smbroker.model.errors import LogError
from smbroker.spark import reading
from smbroker.spark.options import parsed
from smbroker.spark.reading import Reading, Split
from spark.sparkkit import Store


def reading_of(path: Path, **options: str) -> Reading:
    return Reading(parsed({"path": str(path)} | options))


def offsets_of(of: Reading, split: Split) -> list[int]:
    return [offset for batch in of.rows(split) for offset in batch.column("offset").to_pylist()]


def test_splits_cover_a_range_without_overlap(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LEAST_ROWS", 10)
    monkeypatch.setattr(reading, "GROUP_ROWS", 16)
    for count in (70, 33):
        store.publish(count)
        store.seal()
    store.publish(60)
    made = reading_of(store.path)
    for start, end in [(0, 163), (5, 6), (60, 110), (3, 70), (70, 103), (101, 163), (0, 14)]:
        splits = made.splits(start, end)
        assert (splits[0].start, splits[-1].end) == (start, end)
        assert all(one.end == other.start for one, other in pairwise(splits))
        assert [offset for split in splits for offset in offsets_of(made, split)] == list(range(start, end))
        sealed_cuts = [split.start for split in splits[1:] if split.start < 103]
        assert all(cut in range(0, 70, 16) or cut in range(70, 103, 16) for cut in sealed_cuts)
        assert [(split.start, split.end) for split in made.splits(start, end)] == [(s.start, s.end) for s in splits]


def test_a_large_range_has_few_splits_and_a_huge_one_more(store: Store) -> None:
    made = reading_of(store.path)
    assert len(made.splits(0, 5_000_000)) == 12
    assert len(made.splits(0, 1_000_000_000)) == 250
    assert len(reading_of(store.path, topics="a").splits(0, 5_000_000)) == 5


def test_what_retention_removes_between_planning_and_reading(store: Store) -> None:
    store.publish(10)
    store.seal()
    store.publish(10)
    split = Split(5, 15)
    store.forget_sealed()
    with pytest.raises(LogError, match="offset 5 is gone; the first there is is 10"):
        offsets_of(reading_of(store.path), split)
    assert offsets_of(reading_of(store.path, failOnDataLoss="false"), split) == [10, 11, 12, 13, 14]


def test_a_task_waits_until_it_sees_the_mark(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.publish(3)
    later = Timer(0.2, store.publish, (3,))
    later.start()
    assert offsets_of(reading_of(store.path), Split(0, 6)) == [0, 1, 2, 3, 4, 5]
    later.join()
    monkeypatch.setattr(reading, "PATIENCE", 0.1)
    with pytest.raises(LogError, match="ends at 6 here, before offset 9"):
        offsets_of(reading_of(store.path), Split(0, 9))


def test_another_log_in_the_same_place_is_read_anew(tmp_path: Path) -> None:
    for count in (20, 7):
        store = Store(tmp_path / "data")
        store.publish(count)
        store.seal()
        made = reading_of(store.path)
        assert offsets_of(made, Split(0, made.offset_of("latest"))) == list(range(count))
        store.log.close()
        shutil.rmtree(store.path)


def test_large_payloads_are_handed_over_in_pieces(store: Store) -> None:
    store.publish_payloads([b"x" * (1 << 20)] * 40, ORIGINS[0])
    store.seal()
    pieces = list(reading_of(store.path).rows(Split(0, 40)))
    assert sum(map(len, pieces)) == 40
    assert max(piece.nbytes for piece in pieces) <= reading.BATCH_BYTES
