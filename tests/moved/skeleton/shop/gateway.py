"""The services that the shop calls: a bank that is busy twice, and an unreachable warehouse."""

from __future__ import annotations

from shop.models import Call


class Busy(Exception):
    """The bank is busy; try again after so many seconds."""

    retry_after = 30


def charge(number: int) -> str:
    Call.objects.create(service="bank", number=number)
    if Call.objects.filter(service="bank", number=number).count() < 3:
        raise Busy(f"payment for {number}")
    return f"payment for {number}"


def tell_warehouse(number: int) -> None:
    Call.objects.create(service="warehouse", number=number)
    raise ConnectionError(f"no route for {number}")
