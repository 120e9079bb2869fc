"""An app that makes calls fail as in a system without free resources.

The file that CRAMPED names contains the names of the calls. ``fork``, ``pipe`` and ``socketpair``
fail as at a limit of processes, memory or descriptors, and ``thread`` as at a limit of processes.
With ``service`` the factory of the middleware fails, and with ``answer`` the receiver of
``child_started`` never returns.
"""
