"""`./run torture`: a site of its own is worked on and harmed, and everything is checked."""

import argparse


def torture(options: argparse.Namespace) -> int:
    """See bench/torture/trial.py, which is only needed here."""
    from bench.torture.trial import torture

    return torture(options)
