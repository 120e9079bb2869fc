"""The arguments of a call: bound to the signature as Python would, sent by name, read back as they were."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horsies_django.core.codec import ArgumentsCodec, CodecError
from horsies_django.core.errors import TaskDefinitionError
from tests.support.sizes import examples


@dataclass
class Line:
    price: float
    sku: str = "none"


@dataclass
class Order:
    id: int
    lines: list[Line]


class Customer:
    """Looks like a model, as far as the core can tell."""

    _meta = objects = None
    pk = 7


def welcome(user_id: int, *, lang: str = "en") -> int:
    raise NotImplementedError


def bill(order: Order, note: Any = None) -> None:
    raise NotImplementedError


def mixed(a: int, b: int = 2, /, c: int = 3, *, d: int = 4) -> None:
    raise NotImplementedError


def price(prices: dict[str, int]) -> None:
    """Take data with keys."""


def nothing() -> None:
    raise NotImplementedError


WELCOME, BILL, MIXED, PRICES = map(ArgumentsCodec.of, (welcome, bill, mixed, price))


def refusal(codec: ArgumentsCodec, *args: Any, **kwargs: Any) -> CodecError:
    with pytest.raises(CodecError) as raised:
        codec.encode(args, kwargs)
    return raised.value


def unreadable(codec: ArgumentsCodec, text: str) -> CodecError:
    with pytest.raises(CodecError) as raised:
        codec.decode(text)
    return raised.value


def refused_definition(function: Callable[..., Any]) -> str:
    with pytest.raises(TaskDefinitionError) as raised:
        ArgumentsCodec.of(function)
    return str(raised.value)


@pytest.mark.promise("S3.12")
def test_only_names_travel_and_omitted_defaults_stay_at_home() -> None:
    assert WELCOME.encode((7,), {}) == '{"user_id":7}'
    assert WELCOME.encode((7,), {"lang": "tr"}) == '{"user_id":7,"lang":"tr"}'
    assert WELCOME.encode((), {"lang": "tr", "user_id": 7}) == '{"lang":"tr","user_id":7}'
    assert ArgumentsCodec.of(nothing).encode((), {}) == "{}"


def test_the_text_is_compact_and_keeps_letters_as_they_are() -> None:
    assert WELCOME.encode((1,), {"lang": "ç\n"}) == '{"user_id":1,"lang":"ç\\n"}'


def test_what_was_sent_is_ready_for_the_call() -> None:
    assert WELCOME.decode('{"user_id": 7}') == ([], {"user_id": 7})
    assert WELCOME.decode(b'{"lang": "\xc3\xa7", "user_id": 7}') == ([], {"user_id": 7, "lang": "ç"})
    assert ArgumentsCodec.of(nothing).decode("{}") == ([], {})


def test_positional_only_arguments_come_back_by_position() -> None:
    assert MIXED.encode((1, 5, 6), {"d": 7}) == '{"a":1,"b":5,"c":6,"d":7}'
    assert MIXED.decode('{"a":1,"b":5,"c":6,"d":7}') == ([1, 5], {"c": 6, "d": 7})
    assert MIXED.decode('{"a":1}') == ([1], {})


def test_an_omitted_positional_only_argument_before_a_given_one_gets_its_default() -> None:
    def gap(a: int = 1, b: int = 2, /) -> None: ...

    assert ArgumentsCodec.of(gap).decode('{"b":9}') == ([1, 9], {})


@pytest.mark.promise("S3.12")
@pytest.mark.parametrize(
    ("codec", "args", "kwargs", "path", "problem"),
    [
        (WELCOME, (), {}, "user_id", "welcome() is missing the required argument 'user_id'"),
        (BILL, (), {"note": 1}, "order", "bill() is missing the required argument 'order'"),
        (WELCOME, (7, "tr"), {}, "", "welcome() takes 1 positional arguments, but 2 were given"),
        (WELCOME, (7,), {"user_id": 7}, "user_id", "welcome() got multiple values for argument 'user_id'"),
        (WELCOME, (7,), {"lnag": "tr"}, "lnag", "welcome() got an unexpected keyword argument 'lnag'"),
        (MIXED, (), {"a": 1}, "a", "mixed() got the positional-only argument 'a' as a keyword"),
        (MIXED, (1,), {"b": 1}, "b", "mixed() got the positional-only argument 'b' as a keyword"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_in_pythons_words_with_the_signature(
    codec: ArgumentsCodec, args: tuple[Any, ...], kwargs: dict[str, Any], path: str, problem: str
) -> None:
    error = refusal(codec, *args, **kwargs)
    assert str(error).startswith(problem)
    assert (error.kind, error.path) == ("type", path)


def test_the_signature_is_shown_as_its_author_wrote_it() -> None:
    assert str(refusal(WELCOME)).endswith("; its signature is welcome(user_id: int, *, lang: str = 'en') -> int")


def test_several_missing_arguments_are_named_together() -> None:
    def pair(a: int, b: int) -> None: ...

    assert "pair() is missing the required arguments 'a', 'b';" in str(refusal(ArgumentsCodec.of(pair)))


NAMES = st.sampled_from(["a", "b", "c", "d", "e"])


@pytest.mark.thorough
@settings(max_examples=examples(40, 1_000), deadline=None, database=None)
@given(
    st.sampled_from([welcome, bill, mixed, nothing]),
    st.lists(st.just(1), max_size=5),
    st.dictionaries(NAMES, st.just(1)),
)
def test_a_call_fits_exactly_when_python_says_so(function: Any, args: list[int], kwargs: dict[str, int]) -> None:
    try:
        inspect.signature(function).bind(*args, **kwargs)
        fits = True
    except TypeError:
        fits = False
    try:
        ArgumentsCodec.of(function).encode(tuple(args), kwargs)
        told = ""
    except CodecError as error:  # a value of another type is told after the call was found to fit
        told = str(error)
    assert ("its signature is" in told) is not fits


def test_an_error_names_the_place_deep_inside() -> None:
    error = refusal(BILL, Order(1, [Line(1.0), Line(2.0), Line(3.0), Line(float("nan"))]))
    assert str(error) == "argument 'order.lines[3].price': NaN is not valid JSON"
    assert (error.path, error.kind) == ("order.lines[3].price", "value")
    assert str(refusal(BILL, Order(1, []), note={"a b": [0, {1: 2}]})).startswith("argument 'note[key 1][1]': a key is")


def test_an_error_never_shows_the_value_because_logs_read_it() -> None:
    assert str(refusal(WELCOME, "secret")) == "argument 'user_id': expected int, got str"
    assert "secret" not in str(unreadable(WELCOME, '{"user_id": "secret"}'))


@pytest.mark.parametrize(
    "refused",
    [
        lambda: unreadable(WELCOME, '{"user_id": 1, "secret": 2, "secreted": 3}'),
        lambda: unreadable(BILL, '{"order": {"id": 1, "lines": [], "secret": 2}}'),
        lambda: unreadable(PRICES, '{"prices": {"open": 1, "secret": "a"}}'),
        lambda: refusal(PRICES, {"secret": "a"}),
        lambda: refusal(PRICES, {"secret\x00": 1}),
        lambda: refusal(BILL, Order(1, []), note={"secret": {"secret": Customer()}}),
    ],
    ids=["argument", "field", "stored key", "key", "bad key", "key of plain JSON"],
)
def test_an_error_never_shows_a_key_of_data_either(refused: Callable[[], CodecError]) -> None:
    """Naive: an address that is a key, or the name of an argument that another release had, is written into each log."""
    error = refused()
    assert "secret" not in f"{error} {error.path}"


def test_a_model_instance_is_refused_whatever_is_declared() -> None:
    assert str(refusal(WELCOME, Customer())) == "argument 'user_id' is a model instance (Customer): pass user_id.pk"
    assert str(refusal(BILL, Customer())) == "argument 'order' is a model instance (Customer): pass order.pk"
    assert (
        str(refusal(BILL, Order(1, []), Customer())) == "argument 'note' is a model instance (Customer): pass note.pk"
    )


def test_a_model_instance_is_refused_deep_inside_too() -> None:
    error = refusal(BILL, Order(1, [Customer()]))  # type: ignore[list-item]
    assert str(error) == "argument 'order.lines[0]' is a model instance (Customer): pass order.lines[0].pk"
    assert refusal(BILL, Order(1, []), note=[{"who": Customer()}]).path == "note[0][key 1]"


def test_stored_arguments_of_another_signature_are_refused() -> None:
    assert str(unreadable(WELCOME, '{"user_id": 1, "old": 2}')).startswith(
        "welcome() was sent 1 argument that it does not take;"
    )
    assert str(unreadable(WELCOME, '{"lang": "en"}')).startswith(
        "welcome() was sent without the required argument 'user_id';"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1]", "arguments: expected an object, got list"),
        ("null", "arguments: expected an object, got NoneType"),
        ("{", "arguments: the stored text is not JSON: "),
        ('{"user_id": NaN}', "arguments: the stored text is not JSON: NaN is not valid JSON"),
        ("[" * 200_000, "arguments: it is nested more than 200 levels deep"),
        ('{"user_id": 1.0}', "argument 'user_id': expected int, got float"),
    ],
)
def test_stored_text_that_is_no_call_is_refused(text: str, problem: str) -> None:
    assert str(unreadable(WELCOME, text)).startswith(problem)


def test_stored_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(CodecError, match="the stored text is not JSON"):
        WELCOME.decode(b"\xff")


def test_a_star_parameter_is_refused_with_the_line_to_write() -> None:
    def listed(*names: str, lang: str = "en") -> None: ...

    def named(a: int, **rest: int) -> int: ...

    assert refused_definition(listed).endswith("as in\n    def listed(*, names: list[str], lang: str = 'en') -> None:")
    assert refused_definition(named).endswith("as in\n    def named(a: int, *, rest: dict[str, str]) -> int:")


def test_a_parameter_without_annotation_is_refused_with_the_line_to_write() -> None:
    def plain(a, b: int) -> None: ...  # type: ignore[no-untyped-def]

    async def late(a: int, flag=True, note=None) -> None: ...  # type: ignore[no-untyped-def]

    message = refused_definition(plain)
    assert "test_codec.test_a_parameter_without_annotation_is_refused_with_the_line_to_write.<locals>.plain" in message
    assert (
        "plain lacks annotations, without which values cannot be encoded and decoded: a. Write types, as in" in message
    )
    assert message.endswith("\n    def plain(a: int, b: int) -> None:")
    assert refused_definition(late).endswith(
        "\n    async def late(a: int, flag: bool = True, note: int | None = None) -> None:"
    )


def test_a_model_parameter_is_refused_with_the_line_to_write() -> None:
    def charge(customer: Customer, cents: int = 100) -> None: ...

    message = refused_definition(charge)
    assert "parameter 'customer' is a model (Customer)" in message
    assert message.endswith(
        "annotate int and pass customer.pk, as in\n    def charge(customer: int, cents: int = 100) -> None:"
    )


def test_an_annotation_that_is_nonsense_is_refused_at_once() -> None:
    def broken(a: 1 + None) -> None: ...  # type: ignore[valid-type]

    assert "an annotation cannot be evaluated: unsupported operand" in refused_definition(broken)


def later(value: Defined) -> Defined:
    raise NotImplementedError


def never(value: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    raise NotImplementedError


LATER = ArgumentsCodec.of(later)  # Defined does not exist yet


@dataclass
class Defined:
    x: int


def test_a_name_defined_after_the_task_is_found_at_the_first_use() -> None:
    assert LATER.encode((Defined(1),), {}) == '{"value":{"x":1}}'
    assert ArgumentsCodec.of(later).decode('{"value":{"x":1}}') == ([], {"value": Defined(1)})


def test_a_name_that_is_never_defined_is_an_error_at_each_use_and_when_checked() -> None:
    codec = ArgumentsCodec.of(never)
    with pytest.raises(
        TaskDefinitionError, match="cannot be resolved: name 'Nowhere' is not defined. Define or import"
    ):
        codec.resolve()
    for _ in range(2):
        assert "name 'Nowhere' is not defined" in str(refusal(codec, 1))
        assert "name 'Nowhere' is not defined" in str(unreadable(codec, '{"value": 1}'))


def test_a_lower_limit_of_the_interpreter_on_digits_is_an_error_too() -> None:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert "digits" in str(refusal(WELCOME, 10**1000))
    finally:
        sys.set_int_max_str_digits(limit)


def test_duplicate_and_reordered_keys_read_as_jsonb_would_leave_them() -> None:
    text = WELCOME.encode((7,), {"lang": "tr"})
    shuffled = json.dumps(dict(reversed(json.loads(text).items())))
    assert WELCOME.decode(shuffled) == WELCOME.decode(text)
