"""Exception mappers: which error code an exception of user code gets.

The class of the exception is looked up first, then its base classes in method resolution order.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from horsies_django.core.errors import code_problem

Mapper = Mapping[type[BaseException], str]
EMPTY: Mapper = MappingProxyType({})


def mapper_problems(mapper: object) -> list[str]:
    """Return the problems of a mapper whose keys are classes."""
    if not isinstance(mapper, Mapping):
        return [f"a mapper must be a dict of exception classes and error codes, not {type(mapper).__name__}"]
    problems = []
    for key, code in mapper.items():
        if not (isinstance(key, type) and issubclass(key, BaseException)):
            problems.append(f"{key!r} is not an exception class")
        elif problem := code_problem(code):
            problems.append(f"{key.__qualname__}: {problem}")
    return problems


def mapped_code(error: BaseException, *mappers: Mapper) -> str | None:
    for mapper in mappers:
        for base in type(error).__mro__:
            if base in mapper:
                return mapper[base]
    return None
