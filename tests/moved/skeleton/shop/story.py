"""The story of the shop, the same before and after the move.

It sends every task, and prints the rows and the outcomes of the tasks.
"""

from __future__ import annotations

import contextlib
import json
import sys

import django
from django.db import transaction

django.setup()

from shop import outcomes, sends  # noqa: E402 - they need the settings
from shop.models import Call, Mail, Order  # noqa: E402


def refused(number: int) -> None:
    """Place an order in a transaction that fails.

    Neither the order nor its confirmation may exist afterwards.
    """
    with transaction.atomic():
        sends.place(number, "nobody@example.org")
        raise LookupError("the shop is closed")


def story() -> dict[str, object]:
    order = sends.place(7, "ada@example.org")
    with contextlib.suppress(LookupError):
        refused(8)
    sends.remind_later(order.pk)
    return {
        "report": sends.report(7),
        "bill": sends.bill(order.pk),
        "ship": sends.ship(7),
        "total": sends.total_up(order.pk),
        "labels": sends.labels([1, 2, 3]),
        "parcel": sends.parcel([1, 2, 3]),
    }


if __name__ == "__main__":
    handles = story()
    outcomes.run()
    told = {
        "outcomes": {name: outcomes.of(handle) for name, handle in handles.items()},
        "orders": sorted(Order.objects.values_list("number", "address", "total")),
        "mails": sorted(Mail.objects.values_list("address", "text")),
        "calls": sorted(Call.objects.values_list("service", "number")),
    }
    json.dump(told, sys.stdout)
