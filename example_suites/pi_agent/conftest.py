"""The model is a scripted server on this machine, unless the user names an endpoint."""

import pytest
from pi_agent_model import scripted_server


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    server = None if config.getoption("proteus_endpoint") else scripted_server()
    if server is not None:
        server.start()
        config.add_cleanup(server.stop)
        config.option.proteus_endpoint = [f"{wire}={url}" for wire, url in server.endpoint.items()]
