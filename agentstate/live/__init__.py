"""Hints to open pages: one LISTEN connection per process, fanned out to any number of streams.

The log is the truth and a stream is a hint (design.md, section 5): a lost one only delays.
"""
