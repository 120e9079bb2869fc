"""What a type checker says of code that uses tasks: signatures are those of the functions, and what does not exist is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is in the dependency group lint")

ROOT = Path(__file__).parents[2]
# A comment says what mypy must answer to its line: the type that it reveals, or a part of its error.
CODE = """
from __future__ import annotations
from datetime import UTC, datetime, timedelta
from horsies_django import RetryPolicy, TaskResult, current_task, task
from horsies_django.testing import drain

@task
def add(a: int, *, b: int = 0) -> int:
    return a + b

@task(queue="mail", retry_policy=RetryPolicy.fixed([1], auto_retry_for=[OSError, "MAIL_DOWN"]))
async def mail(to: str) -> TaskResult[str]:
    return TaskResult(ok=to)

reveal_type(add)  # TaskFunction[[a: int, *, b: int =], int]
reveal_type(mail)  # TaskFunction[[to: str], str]
reveal_type(add.send(1, b=2))  # TaskHandle[int]
reveal_type(mail.schedule(timedelta(1), "a@b").get().ok_value)  # str
reveal_type(add.with_options(delay=60, good_until=timedelta(1)).send(1))  # TaskHandle[int]
reveal_type(add.with_options(delay=datetime.now(UTC)).send_many([{"a": 1}]))  # list[TaskHandle[int]]
reveal_type(drain(until=timedelta(1), raise_errors=False))  # int
def length(text: str) -> int:
    return len(text)

reveal_type(current_task().step("length", length, "a"))  # int
add.send("1")  # incompatible type "str"; expected "int"
add.with_options(delay=60).send(1, c=3)  # Unexpected keyword argument "c"
add.with_options(delay="soon")  # incompatible type "str"
add.with_options(countdown=60)  # Unexpected keyword argument "countdown"
add.delay(1)  # has no attribute "delay"
add.apply_async((1,))  # has no attribute "apply_async"
add.with_options().delay(1)  # has no attribute "delay"
task(bind=True)  # Unexpected keyword argument "bind"
task(max_retries=3)  # Unexpected keyword argument "max_retries"
task(rate_limit="1/s")  # Unexpected keyword argument "rate_limit"
RetryPolicy.fixed([1], auto_retry_for=[int])  # incompatible type "type[int]"
drain(until=60)  # incompatible type "int"
"""


def test_a_type_checker_knows_what_tasks_take_and_return_and_no_names_of_other_queues(tmp_path: Path) -> None:
    module = tmp_path / "project.py"
    module.write_text(CODE)
    command = [sys.executable, "-m", "mypy", "--config-file=", f"--cache-dir={tmp_path}", "--strict", str(module)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False).stdout
    answers: dict[int, str] = {}
    for line, kind, text in re.findall(r"project\.py:(\d+): (note|error): (.*)", said):
        if kind == "error" or text.startswith("Revealed"):
            answers[int(line)] = re.sub(r"(horsies_django|builtins)\.(\w+\.)*", "", text)
    expected = {number: line.partition("  # ")[2] for number, line in enumerate(CODE.splitlines(), 1) if "  # " in line}
    assert set(answers) == set(expected), said
    for number, words in expected.items():
        wanted = f'Revealed type is "{words}"' if "reveal_type" in CODE.splitlines()[number - 1] else words
        assert wanted in answers[number]
