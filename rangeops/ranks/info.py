"""RankInfo: which rank this process is, of how many, where rank 0 listens, and the GPU it takes.

In this order: explicit arguments; RANK, WORLD_SIZE, LOCAL_RANK (torchrun, or set by hand);
OMPI_COMM_WORLD_*; PMI_*; SLURM_*; else one process.  MASTER_ADDR says where rank 0 listens
(default 127.0.0.1), RANGEOPS_PORT on which port, or else MASTER_PORT + 1, since under torchrun
MASTER_PORT belongs to its own store.  TORCHELASTIC_RESTART_COUNT tells a restarted rank from one
that an earlier start has left behind.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from rangeops.device import find
from rangeops.device.streams import gpu_count

SOURCES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
"""Names of rank, number of ranks and local rank, by who sets them; the third may be missing."""

DEFAULT_PORT = 29521


@dataclass(frozen=True)
class RankInfo:
    """One rank among all.

    Attributes:
        rank: 0 .. size - 1.
        size: number of ranks.
        local_rank: number among the ranks of this host; the GPU to take.
        address, port: where rank 0 listens.
        restart: how many times all ranks have been restarted.

    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    address: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    restart: int = 0

    def __post_init__(self) -> None:
        """Refuse a rank outside 0 .. size - 1."""
        if not 0 <= self.rank < self.size:
            raise ValueError(f"ranks: rank got {self.rank}, expected 0 .. {self.size - 1}")

    @property
    def device(self) -> str:
        """The GPU "cuda:N" of this rank, N its local rank, 0 where one is visible; else "cpu".

        Raises:
            ValueError: more ranks than GPUs on this host.

        """
        gpus = gpu_count()
        if gpus > 1 and self.local_rank >= gpus:
            raise ValueError(
                f"ranks: local rank got {self.local_rank}, this host offers {gpus} GPUs, expected "
                "one a rank; start fewer ranks, or use CPU arenas"
            )
        return f"cuda:{self.local_rank if gpus > 1 else 0}" if gpus else "cpu"

    def take_device(self) -> str:
        """Make this rank's GPU the current one, and return its name, "cpu" where there is none."""
        device = self.device
        find(device).use()
        return device


def rank_info(environment: Mapping[str, str] | None = None) -> RankInfo:
    """Return this process's rank as its starter tells it by environment variables.

    >>> rank_info({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_PORT": "29500"})
    RankInfo(rank=1, size=2, local_rank=1, address='127.0.0.1', port=29501, restart=0)

    Raises:
        ValueError: rank or number of ranks without the other, or a value that is no number.

    """
    variables = os.environ if environment is None else environment
    port = DEFAULT_PORT
    if "MASTER_PORT" in variables:
        port = _number(variables, "MASTER_PORT") + 1
    if "RANGEOPS_PORT" in variables:
        port = _number(variables, "RANGEOPS_PORT")
    address = variables.get("MASTER_ADDR", "127.0.0.1")
    again = "TORCHELASTIC_RESTART_COUNT"
    restart = _number(variables, again) if again in variables else 0
    for names in SOURCES:
        present = [name for name in names[:2] if name in variables]
        if len(present) == 1:
            (missing,) = set(names[:2]) - set(present)
            raise ValueError(
                f"ranks: got {present[0]} without {missing}, expected both; set the two, or "
                "neither for one process"
            )
        if present:
            rank, size = (_number(variables, name) for name in names[:2])
            local = _number(variables, names[2]) if names[2] in variables else rank
            return RankInfo(rank, size, local, address, port, restart)
    return RankInfo(address=address, port=port)


def _number(variables: Mapping[str, str], name: str) -> int:
    try:
        return int(variables[name])
    except ValueError:
        raise ValueError(
            f"ranks: {name} got {variables[name]!r}, expected a whole number"
        ) from None
