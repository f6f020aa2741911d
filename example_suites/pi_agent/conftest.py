"""The model is a scripted server on this machine, unless the user names an endpoint."""

import contextlib

import pi_agent_model
import pytest

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.sandbox import choose


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    rung = config.getoption("proteus_sandbox") or config.getini("proteus_sandbox") or "auto"
    with contextlib.suppress(ConfigurationError):  # which the plugin tells of a rung that there is not
        pi_agent_model.missing_sandbox = choose(rung).preflight()
    server = None if config.getoption("proteus_endpoint") else pi_agent_model.scripted_server()
    if server is not None:
        server.start()
        config.add_cleanup(server.stop)
        config.option.proteus_endpoint = [f"{wire}={url}" for wire, url in server.endpoint.items()]
