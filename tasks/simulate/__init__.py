"""A fleet of simulated workers: outside clients that play real runs back over HTTP, and break.

`python -m tasks.simulate --url …` is a supervisor with one process per worker and one that feeds
them with runs. Faults come from a seeded plan and are real: SIGKILL in the middle of a step,
SIGSTOP past the lease and SIGCONT once somebody else has the run, two writers on one number.
Nothing here reads or writes the database. Why processes: docs/decisions/0008-simulated-fleet.md.
"""
