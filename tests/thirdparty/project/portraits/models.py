"""A picture from which django-pictures makes smaller ones."""

from __future__ import annotations

from django.db import models
from pictures.models import PictureField


class Portrait(models.Model):
    """A portrait of a person."""

    width = models.PositiveIntegerField(null=True)
    height = models.PositiveIntegerField(null=True)
    picture = PictureField(
        upload_to="portraits",
        aspect_ratios=[None, "1/1"],
        width_field="width",
        height_field="height",
    )

    def __str__(self) -> str:
        return self.picture.name
