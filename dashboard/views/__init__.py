"""A module per page: read the address, ask for rows or give one command, render."""
