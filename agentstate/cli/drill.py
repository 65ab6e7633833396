"""`./run drill`: incidents are staged, and it is timed who noticed them and when."""

import argparse


def drill(options: argparse.Namespace) -> int:
    """See bench/drill/command.py, which is only needed here."""
    from bench.drill.command import drill

    return drill(options)
