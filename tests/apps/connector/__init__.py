"""A database backend and a receiver that give connections values that no setting contains."""
