"""Which files of the directory are the log, and which offsets each of them holds.

    NNN.arrow     a tail: the last one is appended to, the others are closed and wait to be sealed
    NNN.parquet   a sealed segment, with NNN.index beside it        NNN: 20 digits, the first offset

Rules: a sealed segment counts over any tail that begins within it (a leftover of its sealing); a
tail ends where the next segment begins, whatever stands in the file beyond that.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from smbroker.log.disk import Disk
from smbroker.log.index import read_header
from smbroker.model.errors import LogError

TAIL, SEALED, INDEX, TEMPORARY, DAMAGED = ".arrow", ".parquet", ".index", ".tmp", ".damaged"
_DIGITS = 20
# no checksum covers what Parquet says of itself: where that is damaged, names may be missing or not be UTF-8
UNDECODABLE = (pa.ArrowException, KeyError, ValueError)
UNREADABLE = (OSError, *UNDECODABLE)


class Segment(NamedTuple):
    base: int
    sealed: bool
    end: int | None  # of a tail: not after this; None: the last one, open to the mark


def file_of(directory: Path, base: int, suffix: str) -> Path:
    return directory / f"{base:0{_DIGITS}}{suffix}"


def bases(names: list[str], suffix: str) -> list[int]:
    """The first offsets of all files with this suffix, in order."""
    length = _DIGITS + len(suffix)
    stems = [name[:_DIGITS] for name in names if len(name) == length and name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())


def segments_in(disk: Disk, directory: Path, ends: dict[int, int]) -> list[Segment]:
    """In order of offsets. `ends` remembers what was found out about the sealed ones that are there."""
    names = disk.names(directory)
    tails, sealed = bases(names, TAIL), _sealed_in(disk, directory, bases(names, SEALED), ends)
    found = [(base, True, end) for base, end in sealed.items()]
    found += [(base, False, None) for base in tails if not _covered(base, sealed)]
    found.sort()
    following = [*(base for base, _, _ in found[1:]), None]
    return [
        Segment(base, is_sealed, end if end is not None else limit)
        for (base, is_sealed, end), limit in zip(found, following, strict=False)
    ]


def _sealed_in(disk: Disk, directory: Path, sealed: list[int], ends: dict[int, int]) -> dict[int, int | None]:
    """Their ends, as far as they are known; other threads may use `ends`, too."""
    found = {base: ends.get(base) or sealed_end(disk, directory, base) for base in sealed}
    for gone in ends.keys() - found.keys():
        ends.pop(gone, None)
    ends.update((base, end) for base, end in found.items() if end is not None)
    return found


def _covered(base: int, sealed: Mapping[int, int | None]) -> bool:
    return any(first <= base < end for first, end in sealed.items() if end is not None)


def sealed_end(disk: Disk, directory: Path, base: int) -> int | None:
    """From the index; where that is damaged from the file itself; None if that is damaged too."""
    header = read_header(disk, file_of(directory, base, INDEX))
    if header and header.base == base:
        return header.end
    from pyarrow import parquet

    try:
        return base + int(parquet.read_metadata(file_of(directory, base, SEALED)).num_rows)
    except UNREADABLE:
        return None


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """What keeps an open file from being read is damage: LogError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except UNREADABLE as error:
        raise LogError("damaged", f"{path.name}: {error}") from error
