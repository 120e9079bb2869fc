"""A task module with a mistake."""

from __future__ import annotations

raise LookupError("a mistake in a task module")
