"""Exceptions of real attempts: each keeps its class and its traceback, in both lanes, also when the next attempt succeeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from horsies_django import RetryPolicy
from tests.apps.project import tasks
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)

AGAIN = RetryPolicy.fixed([0], auto_retry_for=[LookupError], jitter=False)


def test_each_attempt_in_a_worker_keeps_its_exception(worker: Callable[..., WorkerProcess]) -> None:
    """Naive: the result of an attempt that is retried is dropped, and its traceback with it."""
    worker("--processes=1").ready()
    sync = tasks.raises.with_options(retry_policy=AGAIN).send("it broke")
    async_ = tasks.araises.with_options(retry_policy=AGAIN).send()
    fine = tasks.add.send(1)
    for handle, said in ((sync, "LookupError: it broke\n"), (async_, "LookupError: async\n")):
        assert handle.get(30_000).is_err()
        info = handle.info()
        assert info is not None
        assert [(one.attempt, one.exception_class) for one in info.attempts] == [
            (1, "builtins.LookupError"), (2, "builtins.LookupError"),
        ]  # fmt: skip
        for one in info.attempts:
            assert one.traceback is not None
            assert one.traceback.startswith("Traceback (most recent call last):\n")
            assert one.traceback.endswith(said)
    assert fine.get(30_000).ok_value == 1
    done = fine.info()
    assert done is not None
    assert (done.attempts[0].exception_class, done.attempts[0].traceback) == (None, None)
