"""What runs inside a process of the pool: its lanes, one run of a task, and the state that it is brought back to after each."""
