"""Pure rules, which use neither Django nor a clock, and do no I/O."""
