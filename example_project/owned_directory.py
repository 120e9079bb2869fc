"""Directories that belong to one process and can be distinguished from abandoned ones.

The owner holds a lock on a file in the directory. The kernel releases the lock when the process
ends, even if it is killed. A process id in a file would be wrong as soon as another program gets
the number. Only directories of given users and a given prefix are considered, because other people
share /tmp.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Not TMPDIR, because the unprivileged user of a server may not be able to enter that directory.
BASE = Path("/tmp")
LOCK = "owner.lock"


@contextmanager
def owned_directory(prefix: str) -> Iterator[Path]:
    """Create a directory with mode 0700, hold its lock, and remove it at the end."""
    # The directory is locked under another name and then renamed, so that other processes never see
    # it without its lock.
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
    """Yield the directories of these users whose owning process is gone.

    ``owners`` are user ids. The lock of each directory is held while the caller uses it.
    """
    for home in BASE.glob(f"{prefix}*"):
        # OSError: the lock is held, or another process removes the directory at this moment.
        with suppress(OSError):
            if home.is_symlink() or home.stat().st_uid not in owners:
                continue

            # O_NOFOLLOW, because another process of that user could have put a link there.
            lock = os.open(home / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield home
            finally:
                os.close(lock)
