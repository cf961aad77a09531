"""What a kernel does in attention: proposed from names, ranges and bytes, changed by whoever knows better."""

from profiler.roles.launches import (
    EXAMPLE,
    Group,
    assign,
    assigned,
    call,
    call_in,
    chosen,
    effective,
    groups,
    implementation,
    link,
)
from profiler.roles.names import LONGEST, ROLES, Role, propose, short_name

__all__ = [
    "EXAMPLE", "LONGEST", "ROLES", "Group", "Role", "assign", "assigned", "call", "call_in", "chosen", "effective",
    "groups", "implementation", "link", "propose", "short_name",
]
