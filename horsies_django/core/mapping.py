"""Exception mappers: which error code an exception of user code becomes.

The exception's own class counts first, then the nearest of its base classes, in the order in which Python itself looks things up.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from horsies_django.core.errors import code_problem

Mapper = Mapping[type[BaseException], str]
EMPTY: Mapper = MappingProxyType({})


def mapper_problems(mapper: object) -> list[str]:
    """Return all that is wrong with a mapper whose keys are classes."""
    if not isinstance(mapper, Mapping):
        return [f"a mapper is a dict of exception classes and error codes, not {type(mapper).__name__}"]
    problems = []
    for key, code in mapper.items():
        if not (isinstance(key, type) and issubclass(key, BaseException)):
            problems.append(f"{key!r} is no exception class")
        elif problem := code_problem(code):
            problems.append(f"{key.__qualname__}: {problem}")
    return problems


def mapped_code(error: BaseException, *mappers: Mapper) -> str | None:
    """Return the code of the first mapper that knows the exception, or None."""
    for mapper in mappers:
        for base in type(error).__mro__:
            if base in mapper:
                return mapper[base]
    return None
