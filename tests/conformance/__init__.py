"""Django's own tests of task backends, run against HorsiesBackend: ``make conformance``.

The suite comes from Django's source distribution, for no wheel has it. It runs twice: with a
backend that runs each task at once, in the test's process but by the statements and the code of a
worker, and with one that waits for a real worker. If the backport is installed, the same suite also
runs under its names.
"""
