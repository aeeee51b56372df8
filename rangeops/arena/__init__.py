"""arena: the one allocation of a plan, its views, its scalars, groups and status."""

from rangeops.arena.arena import Arena
from rangeops.arena.groups import Groups
from rangeops.arena.sparse import write_kept
from rangeops.arena.status import Status

__all__ = ["Arena", "Groups", "Status", "write_kept"]
