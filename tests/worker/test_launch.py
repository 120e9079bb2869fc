"""Starting a child changes what ``multiprocessing`` does for the thread that starts it, while it does so, and for nobody else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from multiprocessing import connection, spawn
from pathlib import Path
from typing import Any

import pytest

from horsies_django.core.errors import WorkerStartError
from horsies_django.worker.pool import launch
from horsies_django.worker.pool.launch import main_module_left_out, short_lived_directory


def on_another_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def names_main() -> bool:
    """Whether a process that is started now would run the main module."""
    return any(key.startswith("init_main_") for key in spawn.get_preparation_data("some process"))


def test_only_the_thread_that_starts_a_child_leaves_the_main_module_out_and_only_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/project/manage.py", raising=False)
    before = spawn.get_preparation_data
    assert names_main()
    with main_module_left_out():
        assert not names_main()
        assert on_another_thread(names_main)
    assert names_main()
    assert spawn.get_preparation_data is before


def test_two_threads_that_start_children_do_not_undo_each_others_change() -> None:
    before, entered, leave = spawn.get_preparation_data, threading.Event(), threading.Event()

    def start_slowly() -> None:
        with main_module_left_out():
            entered.set()
            assert leave.wait(30)

    first = threading.Thread(target=start_slowly)
    first.start()
    assert entered.wait(30)
    second = threading.Thread(target=start_slowly)
    second.start()
    leave.set()
    first.join()
    second.join()
    assert spawn.get_preparation_data is before


def test_the_socket_of_another_threads_process_lies_where_it_always_does() -> None:
    with short_lived_directory() as directory:
        assert directory is not None
        assert connection.arbitrary_address("AF_UNIX").startswith(directory)
        assert not on_another_thread(lambda: connection.arbitrary_address("AF_UNIX")).startswith(directory)


def test_the_path_of_the_temporary_directory_may_be_of_any_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Naive: the path of the socket is longer than a socket's may be, as with the TMPDIR of some CI runners."""
    place = tmp_path / ("t" * 200)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with short_lived_directory() as directory:
        assert directory is not None
        assert os.path.realpath(directory).startswith(str(place))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(connection.arbitrary_address("AF_UNIX"))
    assert not list(place.iterdir())


def test_without_a_temporary_directory_shared_memory_will_do_and_else_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    monkeypatch.setattr(launch, "SHARED_MEMORY", str(tmp_path))
    with short_lived_directory() as directory:
        assert directory is not None
        assert os.path.realpath(directory).startswith(str(tmp_path))
    monkeypatch.setattr(launch, "SHARED_MEMORY", str(tmp_path / "missing"))
    with pytest.raises(WorkerStartError, match=r"none can be written to .*: set TMPDIR"), short_lived_directory():
        pass


def test_what_prints_after_the_reader_of_its_output_has_gone_goes_on(tmp_path: Path) -> None:
    """Naive: once a log shipper has died, each task that prints fails."""
    code = (
        "import sys; from pathlib import Path; from horsies_django.worker.child import bootstrap; bootstrap.outlive_output(); "
        "print('x' * 100_000, flush=True); print('y', end='', flush=True); print('z', file=sys.stderr); "
        "Path(sys.argv[1]).write_text('went on')"
    )
    reader, writer = os.pipe()
    os.close(reader)
    told = tmp_path / "told"
    done = subprocess.run([sys.executable, "-c", code, told], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr, told.read_text()) == (0, "z\n", "went on")
