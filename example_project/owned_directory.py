"""A directory that belongs to one process, and can be told from one whose owner was killed.

The owner holds a file lock in it, which the kernel drops with the process however it ends; a
process id in a file would be wrong as soon as the number is given to another program. Only
directories of our own user and prefix are looked at: other people share /tmp.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Not TMPDIR: a user's own may be one that the unprivileged user of a server cannot enter.
BASE = Path("/tmp")
LOCK = "owner.lock"


@contextmanager
def owned_directory(prefix: str) -> Iterator[Path]:
    """Make a directory with mode 0700 and hold its lock; remove it at the end."""
    # Locked under another name, then renamed: nobody ever sees a directory of ours without its
    # lock.
    made = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=BASE))
    home = made.with_name(made.name[1:])

    with (made / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made.rename(home)
        try:
            yield home
        finally:
            shutil.rmtree(home, ignore_errors=True)


def abandoned_directories(prefix: str, owners: Collection[int]) -> Iterator[Path]:
    """Yield the directories of these user ids whose owning process is gone, each locked while the
    caller has it.
    """
    for home in BASE.glob(f"{prefix}*"):
        # OSError: its lock is held, or another process removes it at this moment.
        with suppress(OSError):
            if home.is_symlink() or home.stat().st_uid not in owners:
                continue

            # O_NOFOLLOW: another process of that user could have put a link there.
            lock = os.open(home / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield home
            finally:
                os.close(lock)
