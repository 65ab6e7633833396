import pytest

from tests.citus import cluster


@pytest.fixture
def servers() -> cluster.Cluster:
    """Those of `./run test-citus`: a coordinator and two workers."""
    found = cluster.given()
    if found is None:
        pytest.fail("no Citus servers: these run by `./run test-citus`, with AGENTSTATE_CITUS_BIN")
    return found
