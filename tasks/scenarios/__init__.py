"""Scenarios of the simulated fleet that come with the project, as TOML: see scenario.py beside."""
