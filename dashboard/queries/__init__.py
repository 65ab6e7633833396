"""What the pages read. Nothing here writes; every list has a bound, and a place but no offset."""
