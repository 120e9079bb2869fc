"""Integrations with monitoring systems.

Each module needs the extra of its name; nothing else in horsies_django imports them.
"""
