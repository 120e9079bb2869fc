"""Integrations with monitoring systems.

Each module needs the extra of the same name. Nothing else in horsies_django imports these modules.
"""
