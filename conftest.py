"""Settings for the project's own tests and example suites; not part of the package."""

pytest_plugins = ["pytester"]
