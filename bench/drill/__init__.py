"""`./run drill`: one incident at a time is staged, and it is timed who noticed it and when."""
