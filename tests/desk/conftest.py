"""Fixtures that the tests of the admin share, and those of the settings and the checks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client

from horsies_django import signals
from horsies_django.conf import config
from horsies_django.tasks import registry

AddApp = Callable[..., str]
Got = list[tuple[str, Any, dict[str, Any]]]
Watch = Callable[..., Got]


@pytest.fixture
def boss(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("boss"))
    return client


@pytest.fixture
def second_alias(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Yield the options of an alias ``second``, which a test may change; nothing connects to it."""
    options = {**connections.settings["default"]}
    monkeypatch.setitem(connections.settings, "second", options)
    yield options

    connections["second"].close()
    del connections["second"]
    config.cache_clear()


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the tasks that a test defines from the registry when the test ends."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))


@pytest.fixture
def add_app(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_registry: None
) -> Iterator[AddApp]:
    """Yield a function that installs an app with the given modules.

    When the test ends, the tasks and modules of the app are removed.
    """
    monkeypatch.syspath_prepend(tmp_path)
    added = []

    def add(name: str, **modules: str) -> str:
        package = tmp_path / name
        package.mkdir()

        for module, source in {"__init__": "", **modules}.items():
            (package / f"{module}.py").write_text(source)

        added.append(name)
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, name]
        return name

    yield add

    for module in [module for module in sys.modules if module.partition(".")[0] in added]:
        del sys.modules[module]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Return a function that connects a receiver to signals and returns a list of its calls."""
    for name in signals.__all__:
        monkeypatch.setattr(getattr(signals, name), "receivers", [])

    def connect(*names: str) -> Got:
        got: Got = []

        def note(sender: Any, signal: Any, **values: Any) -> None:
            got.append((signal.name, sender, values))

        for name in names:
            getattr(signals, name).connect(note, weak=False)

        return got

    return connect
