"""Tasks whose exceptions and results do harm when they are read, and tasks that break the loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import Group

from horsies_django import TaskError, TaskResult, task


def ends(error: type[BaseException]) -> Callable[..., Any]:
    def end(*args: object) -> Any:
        raise error

    return end


def having(**members: Any) -> Callable[[], BaseException]:
    return type("Unspeakable", (Exception,), members)


class Meta(type):
    """A class whose name cannot be read, and that cannot be compared or put into a dict."""

    def __getattribute__(cls, name: str) -> Any:
        raise SystemExit(name)

    __hash__ = __eq__ = ends(KeyboardInterrupt)  # type: ignore[assignment]


class Nameless(Exception, metaclass=Meta):
    pass


class Text(str):
    """A text that cannot be cut, copied or sent to another process."""

    __slots__ = ()
    __getitem__ = __len__ = __reduce_ex__ = __iter__ = __hash__ = ends(SystemExit)  # type: ignore[assignment]


def with_cause(cause: BaseException) -> BaseException:
    error = LookupError("its cause cannot be shown")
    error.__cause__ = cause
    return error


KINDS: dict[str, Callable[[], BaseException]] = {
    "str: SystemExit": having(__str__=ends(SystemExit)),
    "str: KeyboardInterrupt": having(__str__=ends(KeyboardInterrupt)),
    "str: GeneratorExit": having(__str__=ends(GeneratorExit)),
    "repr": having(__repr__=ends(KeyboardInterrupt)),
    "str and repr": having(__str__=ends(SystemExit), __repr__=ends(SystemExit)),
    "text": having(__str__=lambda self: Text("some text"), __repr__=lambda self: Text("more text")),
    "class": having(__class__=property(ends(SystemExit))),
    "args": having(args=property(ends(SystemExit))),
    "cause": having(__cause__=property(ends(SystemExit))),
    "context": having(__context__=property(ends(KeyboardInterrupt))),
    "notes": having(__notes__=property(ends(SystemExit))),
    "traceback": having(__traceback__=property(ends(SystemExit))),
    "any attribute": having(__getattribute__=ends(SystemExit)),
    "module": having(__module__=7),
    "metaclass": Nameless,
    "cause that cannot be shown": lambda: with_cause(having(__str__=ends(SystemExit))()),
    "cause without a name": lambda: with_cause(Nameless()),
    "group": lambda: ExceptionGroup("many", [having(__str__=ends(SystemExit))(), ValueError()]),  # type: ignore[list-item]
}


@dataclass
class Thing:
    name: str


class Hidden(Thing):
    """A result whose attribute raises SystemExit when it is read."""

    @property
    def name(self) -> str:  # type: ignore[override]
        raise SystemExit

    @name.setter
    def name(self, value: str) -> None:
        pass


@dataclass
class Trapped:
    """An argument that raises SystemExit when it is created, if its name is "trapped"."""

    name: str

    def __post_init__(self) -> None:
        if self.name == "trapped":
            raise SystemExit


class Shy:
    """A value whose repr raises SystemExit."""

    __repr__ = ends(SystemExit)


ERRORS: dict[str, Callable[[], TaskError]] = {
    "data": lambda: TaskError("NOT_THERE", "its data cannot be shown", data=Shy()),
    "message": lambda: TaskError("NOT_THERE", 404),  # type: ignore[arg-type]
    "no message": lambda: TaskError("NOT_THERE", None),  # type: ignore[arg-type]
    "text": lambda: TaskError("NOT_THERE", Text("some text")),
}


@task
def raises(kind: str) -> None:
    raise KINDS[kind]()


@task
async def araises(kind: str) -> None:
    raise KINDS[kind]()


@task
def returns() -> Thing:
    return Hidden("x")


@task
async def areturns() -> Thing:
    return Hidden("x")


@task
def takes(thing: Trapped) -> str:
    return thing.name


@task
def returns_error(kind: str) -> TaskResult[int]:
    return TaskResult(err=ERRORS[kind]())


def close_sockets(loop: Any) -> None:
    for entry in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                os.close(int(entry))
        except OSError:
            continue  # the descriptor of the listing itself


def close_for_real(loop: Any) -> None:
    loop._thread_id = None
    loop.close()


BREAKS: dict[str, Callable[[Any], Any]] = {
    "remove_reader": lambda loop: [loop.remove_reader(number) for number in range(1024)],
    "remove_writer": lambda loop: [loop.remove_writer(number) for number in range(1024)],
    "cancel": lambda loop: [other.cancel() for other in asyncio.all_tasks(loop)],
    "stop": lambda loop: loop.stop(),
    "close": lambda loop: loop.close(),
    "close for real": close_for_real,
    "close sockets": close_sockets,
    "close epoll": lambda loop: os.close(loop._selector.fileno()),
}


@task
async def abreaks(how: str, name: str = "") -> int:
    """Use the database, break the loop, and return the id of this process.

    With a name, run until the group of that name is deleted.
    """
    await Group.objects.acount()
    BREAKS[how](asyncio.get_running_loop())

    if name:
        await Group.objects.acreate(name=f"{name}:{os.getpid()}")
        while await Group.objects.filter(name__startswith=f"{name}:").aexists():
            await asyncio.sleep(0)

    return os.getpid()


@task
async def apid() -> int:
    """Use the database, and return the id of this process."""
    await Group.objects.acount()
    return os.getpid()
