"""A module that ends whoever imports it, as a script without a main guard does."""

from __future__ import annotations

import sys

sys.exit(3)
