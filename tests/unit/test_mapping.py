"""Exception mappers: which code an exception becomes."""

from __future__ import annotations

from horsies_django.core.retry import mapped_code, mapper_problems


class Timeout(OSError):
    pass


def test_the_exact_class_counts_before_its_bases_and_the_nearest_base_before_the_others() -> None:
    mapper = {OSError: "IO", Timeout: "TIMEOUT", Exception: "ANY"}
    assert mapped_code(Timeout(), mapper) == "TIMEOUT"
    assert mapped_code(FileNotFoundError(), mapper) == "IO"
    assert mapped_code(ValueError(), mapper) == "ANY"
    assert mapped_code(SystemExit(), mapper) is None


def test_the_first_mapper_that_knows_the_exception_decides_even_by_a_base() -> None:
    assert mapped_code(Timeout(), {OSError: "TASKS_OWN"}, {Timeout: "OF_THE_SETTINGS"}) == "TASKS_OWN"
    assert mapped_code(KeyError(), {OSError: "TASKS_OWN"}, {LookupError: "OF_THE_SETTINGS"}) == "OF_THE_SETTINGS"


def test_a_mapper_names_its_problems() -> None:
    assert mapper_problems({OSError: "IO"}) == []
    problems = mapper_problems({"OSError": "IO", int: "X", KeyError: "WORKER_CRASHED", ValueError: "lower"})
    assert len(problems) == 4
    assert "is not an exception class" in problems[0]
    assert "reserved" in problems[2]
    assert mapper_problems([OSError]) == ["a mapper must be a dict of exception classes and error codes, not list"]
