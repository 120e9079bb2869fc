"""An app with a receiver of ``connection_created`` that does harm, and tasks that write rows.

A file contains the name of the harm.
"""
