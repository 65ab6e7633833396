"""The async client: the source. `make_sync.py` makes the sync one from it."""
