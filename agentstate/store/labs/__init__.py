"""The two texts' own scenarios, played against the real store with a clock that can be set."""
