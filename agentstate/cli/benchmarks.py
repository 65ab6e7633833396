"""`./run bench`: what this machine reaches, beside PostgreSQL alone and beside peers."""

import argparse


def bench(options: argparse.Namespace) -> int:
    """See bench/suite.py, which is only needed here."""
    from bench.suite import bench

    return bench(options)
