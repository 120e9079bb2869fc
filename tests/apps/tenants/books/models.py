"""The books of a tenant."""

from __future__ import annotations

from django.db import models


class Book(models.Model):
    """A book."""

    name = models.CharField(max_length=50)

    def __str__(self) -> str:
        return self.name
