"""The commands of ./run. Each module is a group of them; arguments.py says which there are."""
