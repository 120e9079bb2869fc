"""Settings of a project whose processes have so many files open that the next ones have large
numbers.
"""

from __future__ import annotations

import os
import resource

from tests.settings import *  # noqa: F403

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 8192), hard))
OPEN_FILES = [os.open(os.devnull, os.O_RDONLY) for _ in range(2_000)]
