"""@task: what it makes of a function, and what it says when it cannot."""

from __future__ import annotations

import copy
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User

from horsies_django import TaskDefinitionError, TaskResult, task
from horsies_django.tasks import registry
from tests.apps.project import tasks


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))


def refused(define: Callable[[], Any], *words: str) -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        define()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.promise("S3.11")
def test_a_task_is_known_by_its_dotted_path_and_keeps_its_functions_face() -> None:
    assert tasks.add.name == "tests.apps.project.tasks.add"
    assert registry.find("tests.apps.project.tasks.add") is tasks.add.definition
    assert tasks.add.__name__ == "add"
    assert tasks.hold.__doc__ is not None
    assert tasks.add(1, b=2) == 3
    assert repr(tasks.add) == "<task tests.apps.project.tasks.add>"


def test_options_are_kept_and_lanes_follow_the_kind_of_function() -> None:
    assert (tasks.mail.definition.queue, tasks.mail.definition.priority, tasks.mail.definition.lane) == (
        "mail",
        7,
        "sync",
    )
    assert (tasks.anoop.definition.queue, tasks.anoop.definition.priority, tasks.anoop.definition.lane) == (
        None,
        100,
        "async",
    )


def test_a_name_of_the_users_choice_replaces_the_path() -> None:
    @task(name="billing.charge")
    def charge() -> None: ...

    assert registry.find("billing.charge") is charge.definition


def test_a_missing_return_annotation_is_refused_with_the_line_to_write() -> None:
    def define() -> None:
        @task
        def untyped(a: int, b: str = "x"):  # type: ignore[no-untyped-def]  # noqa: ANN202
            return a

    refused(define, "untyped", "->", "def untyped(a: int, b: str = 'x') ->")


def test_an_unannotated_parameter_is_refused_by_name() -> None:
    def define() -> None:
        @task
        def half(a, b: int) -> None: ...  # type: ignore[no-untyped-def]

    refused(define, "half lacks annotations", ": a. Write")


def test_parameters_without_names_are_refused() -> None:
    def stars() -> None:
        @task
        def many(*args: int) -> None: ...

    def double() -> None:
        @task
        def more(**kwargs: int) -> None: ...

    refused(stars, "*args")
    refused(double, "**kwargs")


def test_a_model_as_type_is_refused_with_what_to_pass_instead() -> None:
    def define() -> None:
        @task
        def greet(user: User) -> None: ...

    refused(define, "user", "user.pk")


@pytest.mark.parametrize("annotation", [set[int], bytes, complex, Callable[[], int]])
def test_a_type_that_does_not_travel_is_refused(annotation: Any) -> None:
    def taken(value: int) -> None: ...

    taken.__annotations__["value"] = annotation
    refused(lambda: task(taken), "value")


@pytest.mark.parametrize("name", ["", "x" * 10_000, "tab\tname", 7])
def test_a_name_that_cannot_be_is_refused_without_repeating_all_of_it(name: Any) -> None:
    def nothing() -> None: ...

    with pytest.raises(TaskDefinitionError, match="1 to 255 printable characters") as caught:
        task(name=name)(nothing)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "options", [{"priority": 0}, {"priority": 101}, {"priority": True}, {"queue": ""}, {"queue": 1}]
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    def nothing() -> None: ...

    refused(lambda: task(**options)(nothing), next(iter(options)))


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="retries"):
        task(retries=3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("delay", "use send\\(...\\)"),
        ("apply_async", "with_options\\(.*delay=...\\).send"),
        ("s", "there are no signatures"),
    ],
)
def test_a_verb_of_another_queue_says_what_it_is_called_here(verb: str, said: str) -> None:
    for sender in (tasks.add, tasks.add.with_options(priority=1)):
        with pytest.raises(AttributeError, match=f"object has no attribute '{verb}': .*{said}"):
            getattr(sender, verb)(1)
        assert not hasattr(sender, verb)


def test_any_other_attribute_that_there_is_not_is_missing_as_ever_and_tasks_can_be_copied() -> None:
    with pytest.raises(AttributeError, match="'TaskFunction' object has no attribute 'dealy'$"):
        tasks.add.dealy  # type: ignore[attr-defined]  # noqa: B018
    assert copy.copy(tasks.add).name == tasks.add.name
    assert inspect.unwrap(tasks.add) is tasks.add.definition.function


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("base", "decorator of your own"),
        ("bind", "current_task\\(\\) has its id"),
        ("max_retries", "use retry_policy=RetryPolicy"),
        ("autoretry_for", "auto_retry_for="),
        ("rate_limit", "max_concurrency"),
        ("countdown", "use delay= of with_options"),
        ("eta", "schedule\\(when, ...\\)"),
        ("expires", "good_until="),
        ("ignore_result", "use keep_result=False"),
        ("acks_late", "WORKER_CRASHED"),
        ("time_limit", "use timeout_ms="),
        ("retry_polcy", "did you mean retry_policy=\\?"),
    ],
)
def test_an_option_of_another_queue_says_what_it_is_called_here(option: str, said: str) -> None:
    with pytest.raises(TypeError, match=f"task\\(\\) got an unexpected keyword argument '{option}': .*{said}"):
        task(**{option: 1})
    with pytest.raises(TypeError, match=f"with_options\\(\\) got an unexpected keyword argument '{option}': .*{said}"):
        tasks.add.with_options(**{option: 1})


def test_only_functions_become_tasks() -> None:
    class Callable_:
        def __call__(self) -> None: ...

    def stream() -> Iterator[int]:
        yield 1

    refused(lambda: task(Callable_()), "def")
    refused(lambda: task(task(lambda_())), "twice")
    refused(lambda: task(stream), "generator")


def lambda_() -> Any:
    def inner() -> TaskResult[int]:
        return TaskResult(ok=1)

    return inner


def test_the_same_function_may_be_registered_again_as_a_reload_does() -> None:
    before = registry.find("tests.apps.project.tasks.add")
    again = task(tasks.add.definition.function)
    assert registry.find("tests.apps.project.tasks.add") is again.definition is not before


def test_naming_the_app_imports_nothing_of_it_but_its_public_names_are_there() -> None:
    import subprocess
    import sys

    import horsies_django

    code = "import horsies_django, sys; print(sorted(m for m in sys.modules if m.startswith(('django.', 'psycopg'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    for name in horsies_django.__all__:
        assert getattr(horsies_django, name).__name__ == name
    with pytest.raises(AttributeError, match="tsak"):
        horsies_django.tsak  # noqa: B018


def test_the_public_names_are_there_before_django_is_set_up() -> None:
    """A settings module, or an app's ``__init__``, may import them: no model may be imported on the way."""
    program = "import horsies_django as front; [getattr(front, name) for name in front.__all__]"
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
