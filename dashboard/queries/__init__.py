"""What the pages read. Nothing here writes; every list is bounded, by a place and never an offset."""
