"""How this process reaches a model's endpoint: which certificates it believes, and which proxy it asks. Nothing is
asked here, and what wires look like is not known.

Whatever asks an endpoint itself does it in this way, so that one that an agent can reach is not out of reach of the
judge, or of a look whether it answers.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl
    import urllib.request


def is_loopback(url: str) -> bool:
    """Whether a URL leads to this machine."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def trusted() -> ssl.SSLContext:
    """Whom to believe: whom this machine does, and whom the agents themselves would besides.

    Raises:
        OSError: what the environment names besides cannot be read.
    """
    return _trusted(os.environ.get("NODE_EXTRA_CA_CERTS", ""))


@functools.lru_cache(maxsize=1)
def _trusted(more: str) -> ssl.SSLContext:
    """Whom to believe; reading all certificates takes some 20 ms, which not every call need pay."""
    import ssl

    context = ssl.create_default_context()
    if more:
        context.load_verify_locations(more)
    return context


def opener(url: str) -> urllib.request.OpenerDirector:
    """What opens an endpoint; a proxy that the environment names leads nowhere on this machine.

    Raises:
        OSError: as ``trusted``.
    """
    import urllib.request

    proxies = urllib.request.ProxyHandler({} if is_loopback(url) else None)
    secure = [urllib.request.HTTPSHandler(context=trusted())] if urlsplit(url).scheme == "https" else []
    return urllib.request.build_opener(proxies, *secure)
