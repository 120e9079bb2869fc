"""The test project with OpenTelemetry, set up by the code of ``docs/howto/traces.md``; the
environment names the collector.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.settings import *  # noqa: F403
from tests.settings import HORSIES
from tests.support.pages import blocks

page: dict[str, Any] = {}  # its receivers live as long as this
for block in blocks(Path(__file__).parents[2] / "docs" / "howto" / "traces.md"):
    if block.language == "python":
        exec(compile(block.code, "traces.md", "exec", dont_inherit=True), page)

HORSIES = {**HORSIES, **page["HORSIES"]}
