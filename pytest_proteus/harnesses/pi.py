"""pi, the npm coding agent: the description that the driver of all agents works from, and its models by default."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from pytest_proteus.harnesses.agent import KEYS, Agent, AgentHarness, Launch, first_files, usual_surfaces
from pytest_proteus.harnesses.pi_log import damage, read_session

SURFACES = usual_surfaces("AGENTS.md", "skills", "write", "edit")

#: Wire protocol of an endpoint → pi's name of the API.
_APIS: Mapping[str, str] = {
    "anthropic": "anthropic-messages",
    "openai-responses": "openai-responses",
    "openai-chat": "openai-completions",
    "gemini": "google-generative-ai",
}

#: Keys that the agent's own providers read, for runs without an endpoint.
_PROVIDER_KEYS = (
    *("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENROUTER_API_KEY"),
    *("DEEPSEEK_API_KEY", "GROQ_API_KEY", "MISTRAL_API_KEY", "XAI_API_KEY", "CEREBRAS_API_KEY"),
)

#: Where the vendors' own clients are told a base URL → the wire that is spoken there.
_URL_VARIABLES = {
    "ANTHROPIC_BASE_URL": "anthropic",
    "OPENAI_BASE_URL": "openai-chat",
    "GOOGLE_GEMINI_BASE_URL": "gemini",
}

#: The model of `proteus run` where nobody names one: what the agent at its pinned version takes for each vendor, as
#: (wires, the agent's name of the provider, model).
_DEFAULT_MODELS = (
    (("anthropic",), "anthropic", "claude-opus-5-5"),
    (("openai-chat", "openai-responses"), "openai", "gpt-6.2-sol"),
    (("gemini",), "google", "gemini-4-argon"),
)

_PROVIDER = "endpoint"
_SETTINGS = {"retry": {"enabled": True, "maxRetries": 2, "baseDelayMs": 1000, "maxAgentDelayMs": 20000}}


def configured(wire: str | None) -> tuple[str, str]:
    """Endpoint and model of a run that names no model, from what the environment holds.

    Args:
        wire: the wire of the endpoint that is given; None when none is.

    Returns:
        ``WIRE=URL``, empty where an endpoint is given or the agent's own providers are used; the model, empty where
        nothing tells one.
    """
    if wire is not None:
        return "", next((model for wires, _, model in _DEFAULT_MODELS if wire in wires), "")
    for variable, spoken in _URL_VARIABLES.items():
        if os.environ.get(variable):
            return f"{spoken}={os.environ[variable]}", configured(spoken)[1]
    for wires, provider, model in _DEFAULT_MODELS:
        if any(os.environ.get(name) for name in KEYS[wires[0]]):
            return "", f"{provider}/{model}"
    return "", ""


def _argv(launch: Launch) -> Sequence[str]:
    provider = ["--provider", _PROVIDER] if launch.url else []
    skills = ["--skill", "skills"] if (launch.harness / "skills").is_dir() else []
    return [
        *provider,
        *("--model", launch.model),
        *("--session-dir", str(launch.traces), "--session-id", launch.session),
        *("--no-extensions", "--no-mcp", "--no-skills", "--no-prompt-templates", "--no-themes", *skills),
        "-p",
    ]


def _environment(launch: Launch) -> Mapping[str, str]:
    return {
        "PI_CODING_AGENT_DIR": str(launch.agent_home),
        "PI_OFFLINE": "1",
        "PI_TELEMETRY": "0",
        "PI_SKIP_VERSION_CHECK": "1",
    }


def _files(launch: Launch) -> Mapping[str, str]:
    settings = {"agent/settings.json": json.dumps(_SETTINGS)}
    if not launch.url:
        return settings
    provider = {
        # pi adds Anthropic's version itself
        "baseUrl": launch.url if launch.wire == "anthropic" else launch.versioned_url,
        "api": _APIS[launch.wire],
        "apiKey": f"${launch.key}",
        "models": [{"id": launch.model, "reasoning": launch.reasoning, "contextWindow": 200_000, "maxTokens": 16_384}],
    }
    return {**settings, "agent/models.json": json.dumps({"providers": {_PROVIDER: provider}})}


class PiHarness(AgentHarness):
    """The agent ``pi``; without an endpoint it uses its own providers, and the model is named ``provider/model``."""

    agent = Agent(
        name="pi",
        wires=tuple(_APIS),
        surfaces=SURFACES,
        tools={"write": "write", "edit": "edit", "read": "read", "bash": "shell"},
        seed=first_files("AGENTS.md", "skills"),
        argv=_argv,
        environment=_environment,
        files=_files,
        read=read_session,
        damage=damage,
        log=("traces", "*_{session}.jsonl"),
        own_providers=_PROVIDER_KEYS,
    )
