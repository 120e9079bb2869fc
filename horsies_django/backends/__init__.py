"""The backend for ``django.tasks``, which is set in ``settings.TASKS``.

The setting is ``TASKS = {"default": {"BACKEND": "horsies_django.backends.HorsiesBackend"}}``.
``HorsiesBackend`` and ``HorsiesTask`` are those of Django's own ``django.tasks`` if Django has it
(6.0 and newer), otherwise those of the backport ``django_tasks``. The module ``backport`` has those
of the backport on any version of Django.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import django

from horsies_django.core.lazy import import_name

if TYPE_CHECKING:
    from horsies_django.backends.decorator import task
    from horsies_django.backends.native import HorsiesBackend, HorsiesTask

__all__ = ["HorsiesBackend", "HorsiesTask", "task"]

BACKEND_MODULE = "native" if django.VERSION >= (6, 0) else "backport"
# name -> module. They are imported at their first use, because modules of tasks import this package
# before the models are ready.
_HOMES = {"HorsiesBackend": BACKEND_MODULE, "HorsiesTask": BACKEND_MODULE, "task": "decorator"}


def __getattr__(name: str) -> Any:
    return import_name(globals(), _HOMES, name)
