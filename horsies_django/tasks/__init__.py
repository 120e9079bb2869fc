"""Tasks: how they are declared, sent, awaited, cancelled and redacted.

The package itself imports none of its modules.
"""
