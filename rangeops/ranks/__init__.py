"""Ranks: data-parallel training, a process a GPU (or a CPU arena), started by torchrun or by hand.

    with World() as world:                      # this rank and the others
        arena = Arena(plan, world.take_device())
        ranks = Ranks(arena, world)             # same plan everywhere, NCCL or sockets
        step = ReplicatedStep(ranks, lr=1e-3)   # or ShardedStep: ZeRO-1
        ...backward pass...; step()

A rank that dies is noticed at once, one that hangs after 5 s.  The others raise ``RankLost``; those
inside a driver call end 10 s later with its sentence and status 1.  What is promised then: weights,
moments and step are those of the last finished update on every rank.  Not promised: going on in the
same processes.
"""

from rangeops.ranks.communicators import Call, Communicator, RankMismatch
from rangeops.ranks.communicators.sockets import CpuCommunicator
from rangeops.ranks.group import Collective, Ranks
from rangeops.ranks.info import RankInfo, rank_info
from rangeops.ranks.shard import Shard
from rangeops.ranks.sharded import ShardedStep
from rangeops.ranks.step import ReplicatedStep
from rangeops.ranks.world import RankLost, World

__all__ = [
    "Call",
    "Collective",
    "Communicator",
    "CpuCommunicator",
    "RankInfo",
    "RankLost",
    "RankMismatch",
    "Ranks",
    "ReplicatedStep",
    "Shard",
    "ShardedStep",
    "World",
    "rank_info",
]
