"""Settings of a measured project of ordinary size: the example site with the measured tasks."""

from __future__ import annotations

from example_project.settings import *  # noqa: F403
from example_project.settings import INSTALLED_APPS as EXAMPLE_APPS

INSTALLED_APPS = [*EXAMPLE_APPS, "benchmarks.load"]
