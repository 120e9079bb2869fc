"""The form by which files are uploaded."""

from __future__ import annotations

import uuid
from typing import Any

from django import forms
from django.core.files.uploadedfile import UploadedFile
from django.utils.translation import gettext_lazy as _

LARGEST_BYTES = 2 * 2**20
LONGEST_NAME = 200


class FilesInput(forms.ClearableFileInput):
    """A file input in which several files can be chosen."""

    allow_multiple_selected = True


class FilesField(forms.FileField):
    """A field whose value is a list of files; empty files are valid."""

    widget = FilesInput

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_empty_file=True, max_length=LONGEST_NAME, **kwargs)

    def clean(self, data: Any, initial: Any = None) -> list[UploadedFile]:
        """Return the files.

        Raises ValidationError if there is no file or if one is too large. The error contains the
        name of the first large one.
        """
        files = [super(FilesField, self).clean(file, initial) for file in data or [None]]
        for file in files:
            if file.size > LARGEST_BYTES:
                message = _("%(name)s has %(size)s bytes; at most %(largest)s are taken.")
                params = {
                    "name": file.name,
                    "size": f"{file.size:,}",
                    "largest": f"{LARGEST_BYTES:,}",
                }
                raise forms.ValidationError(message, params=params)

        return files


class UploadForm(forms.Form):
    """Some files, and the folder to which they are uploaded."""

    folder = forms.CharField(
        label=_("Folder"),
        required=False,
        max_length=200,
        help_text=_("Where the files belong, as in licenses/python."),
    )
    submission = forms.UUIDField(initial=uuid.uuid4, widget=forms.HiddenInput)
    files = FilesField(
        label=_("Files"), help_text=_("UTF-8 texts of up to 2 MiB. Other files end as NOT_TEXT.")
    )
    review = forms.BooleanField(
        label=_("Have it reviewed before it is published"), label_suffix="", required=False
    )

    def clean_folder(self) -> str:
        """Return the folder without slashes at its beginning and end."""
        return str(self.cleaned_data["folder"]).strip("/")
