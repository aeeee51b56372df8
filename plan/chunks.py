"""Chunks: the rows over which norms are summed, two levels below a tensor.

A chunk is at most 16 granules of one tensor, the work of one warp; a fold is at most 512 chunks
of one tensor, again the work of one warp; a tensor's sum is that of its folds in order.  So the
order of every sum depends on the tensor's length alone, neither on its place in the arena nor on
the launch, and no tensor, however large, runs on one block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plan.dtensor import DTensor
from plan.scratch import CHUNK_GRANULES, FOLD_CHUNKS, GRANULE


class Chunks(NamedTuple):
    """The tables of a series, int32; each entry names a first one, the last entry is the end.

    Attributes:
        granules: first granule of each chunk.
        folds: first chunk of each fold.
        fold_of: first fold of each tensor.

    """

    granules: NDArray[np.int32]
    folds: NDArray[np.int32]
    fold_of: NDArray[np.int32]


def sizes_of(weights: Sequence[DTensor]) -> tuple[int, int]:
    """Return the numbers of chunks and of folds of FP32 tensors, plain ints of any size."""
    chunks = [-(-t.slot_bytes // (4 * GRANULE * CHUNK_GRANULES)) for t in weights]
    return sum(chunks), sum(-(-count // FOLD_CHUNKS) for count in chunks)


def split(counts: NDArray[np.int64], most: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Split rows of ``counts`` items into parts of at most ``most``.

    Returns the first item of each part (with the end behind), and the number of parts a row.

    >>> split(np.array([5, 1]), 2)
    (array([0, 2, 4, 5, 6], dtype=int32), array([3, 1]))
    """
    parts = -(-counts // most)
    inside = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    first = np.repeat(np.cumsum(counts) - counts, parts) + most * inside
    return np.append(first, counts.sum()).astype(np.int32), parts


def chunks_of(first: NDArray[np.int64]) -> Chunks:
    """Return the tables of tensors that start at granules ``first``, as ``Segments`` has them.

    Those of the weights serve every FP32 series, and the halves alike.
    """
    granules, chunks = split(np.diff(first), CHUNK_GRANULES)
    folds, fold_counts = split(chunks, FOLD_CHUNKS)
    return Chunks(granules, folds, np.append(0, np.cumsum(fold_counts)).astype(np.int32))
