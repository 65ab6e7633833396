"""The sync client, made from _async by `make_sync.py`, but for waiting.py."""
