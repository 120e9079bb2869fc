"""What statements should do, in Python: tests compare the statements with these."""
