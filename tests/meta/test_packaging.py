"""What pyproject.toml says of versions: the lowest ones that are tested are those that it allows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_lowest_versions_that_are_tested_are_those_that_installers_may_choose() -> None:
    """Naive: a bound is raised in one place only, and nobody ever ran the version that the other one promises."""
    bounds: dict[str, Version] = {}
    for text in (
        *PROJECT["dependencies"],
        *(each for extra in PROJECT["optional-dependencies"].values() for each in extra),
    ):
        found = Requirement(text)
        (bound,) = found.specifier
        assert bound.operator == ">=", f"{text}: no upper bounds"
        names = [f"{found.name}-{extra}" for extra in found.extras] or [found.name]  # psycopg[binary] is psycopg-binary
        bounds |= {canonicalize_name(name): Version(bound.version) for name in names}
    lines = (ROOT / "constraints" / "lowest.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert {name: Version(version) for name, version in pins.items()} == bounds


def test_tox_has_a_cell_for_each_python_and_django_that_the_classifiers_name() -> None:
    versions = {"py": set[str](), "dj": set[str]()}
    for text in PROJECT["classifiers"]:
        if found := re.fullmatch(r"Programming Language :: Python :: (\d\.\d+)|Framework :: Django :: (\d\.\d)", text):
            python, django = found.groups()
            versions["py" if python else "dj"].add((python or django).replace(".", ""))
    cells = (ROOT / "tox.ini").read_text().partition("env_list =")[2].partition("skip_missing")[0]
    assert set(re.findall(r"py(\d+)", cells)) == versions["py"]
    numbers = set(re.findall(r"\d\d", " ".join(re.findall(r"-dj(\d\d|\{[^}]*\})", cells))))
    assert numbers == versions["dj"]
