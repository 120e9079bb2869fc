"""Settings of a project that makes things when it is imported which its children share, or get anew."""

from __future__ import annotations

from tests.settings import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, "tests.apps.forked"]  # noqa: F405
