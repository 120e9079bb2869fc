"""An app in a system that has no room left, while the file CRAMPED names in its lines of what there
is no room.

``fork`` and ``pipe`` and ``socketpair`` fail as they do at a limit of processes, memory or
descriptors, ``thread`` as at a limit of processes. ``service`` is what the factory of middleware
needs, and ``answer`` is one that ``child_started`` waits for.
"""
