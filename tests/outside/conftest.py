from ipaddress import ip_network

import pytest

from tests.outside.receiver import receiving


@pytest.fixture
def loopback(settings):
    """The site allows deliveries to this machine."""
    settings.DELIVERY_NETWORKS = (ip_network("127.0.0.0/8"),)


@pytest.fixture
def receiver(loopback):
    with receiving() as one:
        yield one
