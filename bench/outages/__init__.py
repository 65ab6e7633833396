"""`./run outages`: the database goes away in each way there is, and it is timed who is back when.

`site` starts every part as deploy/ does, on one wire to a PostgreSQL of its own; `probes` ask each
part all the time; `outages` are what is done to the database; `command` does one after the other
and tells the times.
"""
