"""How the schema is changed while everybody works on. Why: docs/decisions/0042-migrations.md.

locks: what a statement keeps others from. operations: changes that keep nobody from anything for
long, and go on where they were stopped. executor: waits for locks without a queue behind it. plan:
what will be done, told before. releases: which schemas this code serves on.
"""
