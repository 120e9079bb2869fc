"""Models of statements in Python; tests compare the statements with them."""
