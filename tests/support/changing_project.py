"""A project of its own in a directory, whose code a test changes while its processes run."""

from __future__ import annotations

import textwrap
from pathlib import Path

from tests.support.workers import ROOT

MANAGE = """
    import os
    import sys

    from django.core.management import execute_from_command_line

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "conf.settings")
    if __name__ == "__main__":
        execute_from_command_line(sys.argv)
"""
SETTINGS = """
    from tests.settings import *

    INSTALLED_APPS = [*INSTALLED_APPS, "shop"]
    ROOT_URLCONF = "conf.urls"
"""
URLS = """
    from django.http import HttpResponse
    from django.urls import path

    urlpatterns = [path("", lambda request: HttpResponse("a page of the site"))]
"""
TASKS = """
    import os
    import time

    from horsies_django import task


    @task
    def version() -> str:
        return "{version}"


    @task
    def price() -> int:
        from shop.prices import PRICE

        return PRICE


    @task
    def waits(begun: str, gate: str) -> str:
        open(begun, "w").close()
        while not os.path.exists(gate):
            time.sleep(0.02)
        return "{version}"
"""


class Project:
    """A project with the app ``shop``; its settings are those of the tests."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.write("manage.py", MANAGE)
        self.write("conf/__init__.py", "")
        self.write("conf/settings.py", SETTINGS)
        self.write("conf/urls.py", URLS)
        self.write("shop/__init__.py", "")
        self.write("shop/prices.py", "PRICE = 7")
        self.tasks("the first")

    def tasks(self, version: str) -> Path:
        """Write the tasks of a version."""
        return self.write("shop/tasks.py", TASKS.format(version=version))

    def write(self, name: str, text: str) -> Path:
        """Write a file at once, as editors do, so that nobody sees half of it."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(textwrap.dedent(text))
        new.replace(path)
        return path

    @property
    def environment(self) -> dict[str, str]:
        """What a process of the project needs."""
        return {"CWD": str(self.directory), "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "conf.settings"}
