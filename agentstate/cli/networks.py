"""`./run networks`: parts on hosts of their own, and what networks do between them."""

import argparse


def networks(options: argparse.Namespace) -> int:
    """See bench/networks/command.py, which is only needed here."""
    from bench.networks.command import networks

    return networks(options)
