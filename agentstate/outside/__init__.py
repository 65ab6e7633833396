"""What leaves the site: messages to addresses that an admin gave, and to nowhere else.

`addresses.read_address` says what an address may be, `sending.send` tries a message once. Each try
has one limit of time, whatever the receiver does, and connects only to an address that was checked,
at that moment, to be one that may be reached (`networks.py`).
"""
