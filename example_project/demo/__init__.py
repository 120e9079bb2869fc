"""The demo: the library at work on real files, told step by step; ``manage.py demo`` starts it."""
