"""Pure rules of the queue: no Django, no clock, no I/O."""
