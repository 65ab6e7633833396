"""The admin at /admin/: people and views are changed there, the store's tables only looked at.

Nothing here writes to the store: what an admin may change of it (keys, targets) is a page of the
console, which gives a command. Why: docs/decisions/0028-admin.md.
"""
