"""Pure rules: (state, command, now) -> decision or refusal. No Django, no clock, no I/O."""
