"""A module whose import ends the process, as that of a script without a main guard does."""

from __future__ import annotations

import sys

sys.exit(3)
