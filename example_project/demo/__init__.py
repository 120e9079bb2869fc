"""The demo, which prints each step of the library's work on real files.

``manage.py demo`` starts it.
"""
