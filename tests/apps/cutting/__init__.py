"""An app whose receiver of ``connection_created`` does harm, when a file says so, and tasks that
write rows.
"""
