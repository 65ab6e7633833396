"""What is in deploy/, tried where there is no Docker engine.

`deploy/check-files` has each file read by the program that it is for. `deploy/check-clean-root`
makes of the Dockerfile what an engine would make, in a clean Debian, and runs the site of
compose.yaml in it.
"""
