"""Names of a package that are imported from its modules at their first use: a module calls ``load``
in its ``__getattr__``.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def load(namespace: dict[str, Any], homes: Mapping[str, str], name: str) -> Any:
    """Import a name of the package with the globals ``namespace``, and keep it there. ``homes``:
    name -> module of the package.

    Raises AttributeError for another name.
    """
    package = namespace["__name__"]
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = namespace[name] = getattr(import_module(f"{package}.{homes[name]}"), name)
    return value
