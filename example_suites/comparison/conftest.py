"""The repository of the task, made anew for each session, and a scripted server in the place of all models."""

import comparison_models
import pytest

from pytest_proteus.sandbox import choose

collect_ignore = ["repository"]  # its tests are the task's


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    rung = config.getoption("proteus_sandbox") or config.getini("proteus_sandbox") or "auto"
    comparison_models.missing_sandbox = choose(rung).preflight()
    comparison_models.make_repository(config)
    server = None if config.getoption("proteus_endpoint") else comparison_models.scripted_server()
    if server is not None:
        server.start()
        config.add_cleanup(server.stop)
        comparison_models.endpoint = server.endpoint  # of this suite alone: others have scripts of their own
