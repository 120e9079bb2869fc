"""The library's own tests, which are run by ``manage.py test example_project``.

They are an example of tests for a project that sends tasks.
"""
