"""`./run networks`: database, web, background work and agents on hosts of their own, and what
networks do between them.

`hosts` makes the namespaces and the cable between them; `command` lets the clients of
`./run torture` work there, cuts, delays and loses packets, and holds all of it against its checker.
"""
