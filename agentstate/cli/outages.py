"""`./run outages`: the database goes away in each way there is, and every part comes back."""

import argparse


def outages(options: argparse.Namespace) -> int:
    """See bench/outages/command.py, which is only needed here."""
    from bench.outages.command import outages

    return outages(options)
