"""The library's own tests, run by ``manage.py test example_project``: they show how to test a
project that sends tasks.
"""
