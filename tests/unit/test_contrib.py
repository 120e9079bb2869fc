"""The integrations: each says what to install, and is there for those only who name it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "package", "distribution"),
    [("sentry", "sentry_sdk", "sentry-sdk"), ("opentelemetry", "opentelemetry", "opentelemetry-api")],
)
def test_without_its_package_an_integration_says_what_to_install(module: str, package: str, distribution: str) -> None:
    name = f"horsies_django.contrib.{module}"
    code = f"import sys; sys.modules[{package!r}] = None\nimport {name}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"ImportError: {name} needs {distribution}: pip install 'horsies-django[{module}]'" in result.stderr
