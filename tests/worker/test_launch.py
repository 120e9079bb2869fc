"""Starting a child changes what ``multiprocessing`` does for the thread that starts it, while it does so, and for nobody else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from multiprocessing import connection, spawn
from typing import Any

import pytest

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
