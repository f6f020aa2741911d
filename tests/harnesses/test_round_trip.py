"""Whether a model answers at all: over every wire, with the reason when it does not."""

from __future__ import annotations

import http.server
import shutil
import ssl
import subprocess
import threading

import pytest

from pytest_proteus.harnesses import round_trip
from pytest_proteus.harnesses.codex import CodexHarness
from pytest_proteus.harnesses.pi import PiHarness
from pytest_proteus.testing import ModelServer, fail, say


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(round_trip, "BACKOFF", (0.0, 0.0))


def silent(server: ModelServer, wire: str, model: str = "some-model") -> str:
    return PiHarness({wire: server.endpoint[wire]}).silent(model)


@pytest.mark.parametrize("wire", ["anthropic", "openai-chat", "openai-responses", "gemini"])
def test_a_model_that_answers_is_asked_once_by_its_name(wire):
    with ModelServer([say("Well.")]) as server:
        assert silent(server, wire) == ""
    (request,) = server.requests
    assert request.wire == wire
    assert "some-model" in request.path + str(request.body.get("model"))


@pytest.mark.parametrize(("status", "times"), [(401, 1), (404, 1), (400, 1), (429, 3), (503, 3)])
def test_an_error_tells_its_status_and_only_what_may_pass_is_tried_again(monkeypatch, status, times):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "hush-hush-hush")
    with ModelServer([fail(status)]) as server:
        told = silent(server, "anthropic")
    assert told.startswith(
        f"the model 'some-model' does not answer at http://127.0.0.1:{server.port}/v1: status {status}"
    )
    assert len(server.requests) == times
    assert "hush" not in told


def test_what_passes_is_no_silence():
    with ModelServer([fail(503, times=2), say("Well.")]) as server:
        assert silent(server, "anthropic") == ""


def test_an_endpoint_that_is_not_there_is_silent():
    with ModelServer([]) as server:
        pass
    assert "refused" in silent(server, "openai-chat")


def test_the_agents_own_providers_are_not_asked(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert PiHarness().silent("anthropic/some-model") == ""


def test_a_proxy_of_the_environment_is_not_in_the_way_of_this_machine(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with ModelServer([say("Well.")]) as server:
        assert CodexHarness(server.endpoint).silent("some-model") == ""


class Answers(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make a certificate")
def test_a_model_behind_a_certificate_that_agents_are_told_to_trust_answers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    make = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -days 2 -subj /CN=localhost"
    subprocess.run([*make.split(), "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    secret = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secret.load_cert_chain("cert", "key")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.socket = secret.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None
        threading.Thread(target=server.serve_forever, daemon=True).start()
        told = []
        for trusted in ("", "cert", "no such file"):
            monkeypatch.setenv("NODE_EXTRA_CA_CERTS", trusted)
            told.append(PiHarness({"anthropic": f"https://localhost:{server.server_port}"}).silent("some-model"))
        server.shutdown()
    assert "certificate" in told[0]
    assert told[1] == ""
    assert "No such file" in told[2]
