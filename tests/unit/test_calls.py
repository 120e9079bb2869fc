"""The digests of the arguments of a step, and the form in which its result is stored, for functions
of any kind.
"""

from __future__ import annotations

import datetime as dt
import functools
import gc
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

from horsies_django.core.codec import CodecError, UnsupportedType
from horsies_django.core.codec.calls import call_digest, result_shape
from horsies_django.core.errors import TaskDefinitionError
from tests.unit.shapes import Color, Customer, error_of

if TYPE_CHECKING:
    from nowhere import Client, Receipt  # type: ignore[import-not-found]


@dataclass
class Order:
    number: int
    total: Decimal


class Shop:
    def charge(self, order: int, *, total: int = 0) -> Order:
        return Order(order, Decimal(total))


def charge(order: Any, total: Any = 0, /, *more: Any, note: Any = "", **rest: Any) -> int:
    return 0


def of_a_client(client: Client, number: int) -> Order:
    return Order(number, Decimal(1))


def of_nobody() -> Receipt: ...


def atomically(order: int, atomic: bool = False) -> None: ...


def digest(*args: Any, function: Callable[..., Any] = charge, **kwargs: Any) -> str:
    return call_digest(function, args, kwargs)


MOMENT = dt.datetime(2026, 3, 4, tzinfo=dt.UTC)
VALUES = [
    None,
    True,
    1,
    1.5,
    "1",
    [1],
    {"a": 1},
    {"b": 1},
    Decimal("2.50"),
    uuid.UUID(int=7),
    MOMENT,
    MOMENT.date(),
    dt.timedelta(1),
    b"x",
    {"x"},
    PurePosixPath("y"),
    Order(1, Decimal(2)),
    Order(2, Decimal(2)),
    Color.RED,
    [Order(1, Decimal(3))],
    {"a": [Decimal(4)]},
]


def test_only_equal_arguments_have_equal_digests() -> None:
    """Equal arguments have equal digests, and different arguments have different ones."""
    digests = [digest(value) for value in VALUES]

    assert digests == [digest(value) for value in VALUES]
    assert len(set(digests)) == len(VALUES)
    assert {len(each) for each in digests} == {32}
    assert digest({"a": 1, "b": {"x": 1, "y": 2}}) == digest({"b": {"y": 2, "x": 1}, "a": 1})
    assert digest(1, a=1, b=2) == digest(1, b=2, a=1)

    # The digest of the first release: another one is an error in the middle of a deployment.
    assert (
        digest(Order(1, Decimal(2)), MOMENT, (1, 2.5), note=Color.RED, b=dt.timedelta(1))
        == "3e8a29e03f95c10aeb738cabddff0f13"
    )


def test_positional_and_named_arguments_have_equal_digests() -> None:
    shop = Shop()

    assert digest(7, function=shop.charge) == digest(order=7, function=shop.charge)
    assert digest(7, function=functools.partial(of_a_client, "c")) == digest(
        "c", 7, function=of_a_client
    )
    assert digest("c", function=functools.partial(of_a_client, number=7)) == digest(
        "c", 7, function=of_a_client
    )

    assert digest(1, 2) != digest(2, 1)
    assert digest(1, 2, 3) != digest(1, 2, note=3)
    assert digest(function=functools.partial(charge, 1)) != digest(
        function=functools.partial(charge, 2)
    )


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (ENDLESS, "nested more than"),
        (Customer(), "argument 'order' is a model instance (Customer): pass order.pk"),
        (Shop(), "argument 'order': Shop cannot be encoded as JSON: pass a key"),
        (float("nan"), "argument 'order': NaN is not valid JSON"),
        (Order(1, Decimal("nan")), "a Decimal must be finite"),
    ],
)
def test_an_incomparable_argument_is_named_with_advice(value: Any, words: str) -> None:
    """The error of an argument that cannot be compared names it and says what to pass instead."""
    assert words in str(error_of(digest, value))


def test_unsuitable_arguments_are_refused_before_the_call() -> None:
    """Arguments that do not fit the function are refused before it runs."""
    with pytest.raises(TypeError, match="missing a required argument: 'order'"):
        digest()
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        digest(1, function=Shop().charge, colour="red")


def test_a_parameter_reserved_by_step_is_refused_with_advice() -> None:
    """A parameter that ``step`` reserves for itself is refused, with another way to pass it."""
    with pytest.raises(TypeError, match=r"functools\.partial\(atomically, atomic=\.\.\.\)"):
        digest(1, function=atomically)

    by_position = digest(1, True, function=atomically)
    assert by_position == digest(1, function=functools.partial(atomically, atomic=True))
    assert by_position != digest(1, function=functools.partial(atomically, atomic=False))


def test_a_builtin_without_a_signature_can_be_a_step() -> None:
    assert digest(1, 2, function=max) != digest(1, 3, function=max)
    assert result_shape(max).encode(3, "") == 3


@pytest.mark.parametrize(
    "function", [Shop().charge, Shop.charge, of_a_client, functools.partial(of_a_client, 1)]
)
def test_a_result_is_stored_by_the_annotation_of_the_function(function: Callable[..., Any]) -> None:
    """An annotation of a parameter may exist for type checkers only."""
    shape = result_shape(function)
    stored = shape.encode(Order(1, Decimal("2.50")), "")

    assert stored == {"number": 1, "total": "2.50"}
    assert shape.decode(stored, "") == Order(1, Decimal("2.50"))


def test_a_result_without_annotation_is_plain_data() -> None:
    shape = result_shape(lambda: None)

    assert shape.encode({"a": [1, None]}, "") == {"a": [1, None]}

    for value in ((1, 2), Decimal(1), Order(1, Decimal(1))):
        with pytest.raises(CodecError):
            shape.encode(value, "")


def test_an_unusable_annotation_is_refused_before_the_call() -> None:
    """A return annotation that cannot be stored or resolved is refused before the function runs."""

    def shop() -> Shop:
        raise NotImplementedError

    with pytest.raises(UnsupportedType, match="the return annotation: Shop"):
        result_shape(shop)
    with pytest.raises(TaskDefinitionError, match="'Receipt' is not defined"):
        result_shape(of_nobody)


def test_the_cache_does_not_keep_a_function_alive() -> None:
    """A lambda is made anew for each call, and may hold a client or a request."""

    def of_an_order(order: int) -> Order:
        return Order(order, Decimal(1))

    alive = weakref.ref(of_an_order)

    assert digest(1, function=of_an_order) == digest(order=1, function=of_an_order)
    assert result_shape(of_an_order) is result_shape(of_an_order)

    del of_an_order
    gc.collect()

    assert alive() is None
