"""Tasks: declaring, sending, waiting, cancelling, redacting.

Importing this package imports none of its modules.
"""
