"""The rows that the tasks of the shop write."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    number = models.IntegerField()
    address = models.CharField(max_length=200)
    total = models.IntegerField(default=0)

    def __str__(self) -> str:
        return str(self.number)


class Mail(models.Model):
    address = models.CharField(max_length=200)
    text = models.CharField(max_length=200)

    def __str__(self) -> str:
        return self.text


class Call(models.Model):
    """A call of an external service; the rows count the calls."""

    service = models.CharField(max_length=20)
    number = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.service} {self.number}"
