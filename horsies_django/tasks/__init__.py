"""Tasks: how they are declared, sent, waited for, cancelled and redacted. Importing this package imports none of its modules."""
