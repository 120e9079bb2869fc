"""Names of a package that are imported from its modules when they are used first.

The ``__getattr__`` of the package calls ``import_name``.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def import_name(namespace: dict[str, Any], homes: Mapping[str, str], name: str) -> Any:
    """Import a name of a package, and return its value.

    ``namespace`` has the globals of the package, to which the value is added. ``homes`` has the
    module of each name. Raises AttributeError if the name is not in ``homes``.
    """
    package = namespace["__name__"]
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = namespace[name] = getattr(import_module(f"{package}.{homes[name]}"), name)
    return value
