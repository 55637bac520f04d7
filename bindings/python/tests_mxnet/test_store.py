"""Each case of the session is a test: it holds on every rank."""

import pytest
import session as script


@pytest.mark.parametrize("name", script.cases())
def test(session, name):
    for rank, failure in enumerate(session[name]):
        assert not failure, f"rank {rank}:\n{failure}"
