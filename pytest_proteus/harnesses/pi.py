"""pi, the npm coding agent, as a harness: it runs in the harness tree, edits it, and starts from it the next time.

An episode is one session of the agent, its phases are prompts in that session. Nothing but the tree goes from one
episode to the next: home, temporary files and session belong to the episode. How the agent is kept from doing harm is
the sandbox's business, what its endpoint costs is not known here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pytest_proteus.core.adapter import ActionEvent, EpisodeResult, EpisodeSpec, Surface
from pytest_proteus.core.disposition import Disposition
from pytest_proteus.core.errors import ConfigurationError, PhaseTimeout
from pytest_proteus.core.trees import remove
from pytest_proteus.harnesses.install import FoundAgent, find_agent
from pytest_proteus.harnesses.pi_log import Session, damage, read_session
from pytest_proteus.harnesses.traces import bounded_text, open_folder, read_regular, surface_finder
from pytest_proteus.sandbox import LocalSandbox, Outcome
from pytest_proteus.sandbox.none import SupervisorLost

SURFACES = (
    Surface("instructions", "AGENTS.md", write_tools=frozenset({"write", "edit"}), free_named=False),
    Surface("notes", "notes", write_tools=frozenset({"write", "edit"})),
    Surface("skills", "skills", unit="directory", write_tools=frozenset({"write", "edit"})),
    Surface("tools", "tools", write_tools=frozenset({"write", "edit"}), is_code=True),
)

SEED_INSTRUCTIONS = """\
# Instructions

This folder is yours to change. You start every session from what it holds; nothing else lasts.

- `AGENTS.md`: this page. You read it at the start of every session.
- `notes/`: what you want to know again, one Markdown file a subject.
- `skills/<name>/SKILL.md`: how to do something, with a front matter of `name` and `description`. You see the name and
  the description in every session, the rest when you open it.
- `tools/`: scripts that you run.
"""

SEED_NOTE = "# Notes\n\nNothing has been noted yet.\n"

#: Wire protocol of an endpoint → pi's name of the API, the path that its base URL ends with, the variables that may
#: hold the key.
_WIRES: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "anthropic": ("anthropic-messages", "", ("ANTHROPIC_API_KEY",)),
    "openai-responses": ("openai-responses", "/v1", ("OPENAI_API_KEY",)),
    "openai-chat": ("openai-completions", "/v1", ("OPENAI_API_KEY",)),
    "gemini": ("google-generative-ai", "/v1beta", ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
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

#: What of our own environment a way to the network may need.
_NETWORK = (
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROVIDER = "endpoint"
_SETTINGS = {"retry": {"enabled": True, "maxRetries": 2, "baseDelayMs": 1000, "maxAgentDelayMs": 20000}}
_SESSION_LIMIT = 1 << 28


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
        if any(os.environ.get(name) for name in _WIRES[wires[0]][2]):
            return "", f"{provider}/{model}"
    return "", ""


class PiHarness:
    """The agent ``pi``.

    Args:
        endpoint: wire protocol (``anthropic``, ``openai-chat``, ``openai-responses``, ``gemini``) → base URL as that
            vendor's own clients take it; the first one is used. None for the agent's own providers: then the model is
            named ``provider/model``, and their usual key variables are handed over.
        agent: path of the agent's program; None to look for it (see ``harnesses.install.find_agent``).
        reasoning: whether the endpoint's model is asked to think before it answers.
        sandbox: where the agent runs.

    Raises:
        ConfigurationError: a wire that pi does not speak.
    """

    name = "pi"
    continuity_mode = "none"
    disposition_in_files = False
    deterministic = False
    seeded = False

    def __init__(
        self,
        endpoint: Mapping[str, str] | None = None,
        agent: str | Path | None = None,
        *,
        reasoning: bool = False,
        sandbox: LocalSandbox | None = None,
    ) -> None:
        # paths and addresses are private: they do not shape what the agent does
        self._url = ""
        self._agent = agent
        self._sandbox = sandbox or LocalSandbox()
        self._found: FoundAgent | None = None
        self.wire = ""
        self.reasoning = reasoning
        if endpoint:
            self.wire, self._url = next(iter(endpoint.items()))
            if self.wire not in _WIRES:
                raise ConfigurationError(
                    f"harness pi: no wire protocol {self.wire!r}; choose one of {', '.join(_WIRES)}"
                )

    @property
    def version(self) -> str:
        """The agent's version; empty when it is not on this machine or does not tell."""
        return "" if self.preflight() else self._program().version

    def preflight(self) -> str:
        """Why this harness cannot run here, in one sentence; empty when it can. Asks no model."""
        try:
            self._program()
            self._key()
        except ConfigurationError as error:
            return str(error)
        return ""

    def unconfigured(self, model: str) -> str:
        """What nobody has configured for runs with ``model``, in one sentence; empty when nothing is missing, and where
        the agent is not on this machine."""
        try:
            self._program()
        except ConfigurationError:
            return ""
        try:
            has_key = bool(self._key())
        except ConfigurationError as error:
            return str(error)
        if has_key and model:
            return ""
        way = "" if has_key else f"give --proteus-endpoint=[WIRE=]URL or set a key, such as {_PROVIDER_KEYS[0]}, and "
        missing = "model" if has_key else "model endpoint and no key" if model else "model, endpoint or key"
        named = way.removesuffix(", and ") if model else f"{way}name a model with --proteus-model or a model axis"
        return f"harness pi has no {missing}: {named} (in `proteus run`: --endpoint, --model)"

    def surfaces(self) -> Sequence[Surface]:
        """``instructions`` (``AGENTS.md``), ``notes``, ``skills`` (a folder a skill) and ``tools``."""
        return SURFACES

    def required_edit_tools(self) -> frozenset[str]:
        """``write`` and ``edit``."""
        return frozenset({"write", "edit"})

    def seed(self, harness_root: Path, rng_seed: int = 0) -> None:
        """Write the instructions and one note: the same for every seed."""
        root = Path(harness_root)
        (root / "notes").mkdir(parents=True, exist_ok=True)
        (root / "AGENTS.md").write_text(SEED_INSTRUCTIONS, encoding="utf-8")
        (root / "notes" / "index.md").write_text(SEED_NOTE, encoding="utf-8")

    def install_disposition(self, harness_root: Path, disposition: Disposition) -> None:
        """Nothing is written: the prompts carry it.

        Raises:
            ConfigurationError: a disposition that is a patch.
        """
        if disposition.patch:
            raise ConfigurationError(
                f"harness pi takes a disposition by prompt: give {disposition.label!r} a prompt_suffix, not a patch"
            )

    def disposition_fingerprint(self, harness_root: Path) -> str:
        """Always the same: no disposition lies in the tree."""
        return hashlib.sha256(b"").hexdigest()

    def run_episode(self, spec: EpisodeSpec) -> EpisodeResult:
        """Run the phases in one session of the agent.

        Returns:
            Counters: ``phase_<phase>_turns``, ``tool_calls``, ``model_errors``, and ``agent_log_tokens``: what the
            agent's own log says of its tokens, as far as it says anything.

        Raises:
            PhaseTimeout: a phase ran out of time.
            ConfigurationError: no model, no agent, no key, or a version whose log cannot be read.
        """
        if not spec.model:
            raise ConfigurationError("harness pi needs a model: name one with --proteus-model or a model axis")
        episode = _Episode(spec)
        episode.begin()
        try:
            self._write_home(episode, spec.model)
            for phase, prompt in spec.phase_prompts.items():
                episode.begin_phase(phase)
                try:
                    outcome = self._launch(spec, episode, prompt)
                except SupervisorLost as lost:
                    return EpisodeResult(spec.episode, False, 0, f"phase {phase}: {lost}", {}, "abort")
                session = episode.session()
                error, error_class = _judge(phase, outcome, session, episode.damage())
                if error:
                    return EpisodeResult(
                        spec.episode, False, sum(session.turns.values()), error, _counters(spec, session), error_class
                    )
        finally:
            episode.end()
        session = episode.session()
        return EpisodeResult(spec.episode, True, sum(session.turns.values()), "", _counters(spec, session))

    def read_trace(self, root: Path, episode: int) -> Sequence[ActionEvent]:
        """What the agent's session file says of an episode; empty when there is none."""
        return _Episode(EpisodeSpec(Path(root), episode, "", {})).session().events

    def _program(self) -> FoundAgent:
        if self._found is None:
            self._found = find_agent("pi", self._agent)
        return self._found

    def _launch(self, spec: EpisodeSpec, episode: _Episode, prompt: str) -> Outcome:
        program = self._program()
        model = ["--provider", _PROVIDER, "--model", spec.model] if self._url else ["--model", spec.model]
        skills = ["--skill", "skills"] if (spec.harness_root / "skills").is_dir() else []
        return self._sandbox.launch(
            [
                *program.argv,
                *model,
                *("--session-dir", str(episode.traces), "--session-id", episode.session_id),
                *("--no-extensions", "--no-mcp", "--no-skills", "--no-prompt-templates", "--no-themes", *skills),
                "-p",
            ],
            env=self._environment(spec, episode),
            cwd=spec.harness_root,
            stdin=prompt,
            timeout=spec.phase_timeout,
        )

    def _environment(self, spec: EpisodeSpec, episode: _Episode) -> dict[str, str]:
        """The whole environment of the agent; our own is not inherited, its paths may name the framework."""
        return {
            "PATH": _PATH,
            "HOME": str(episode.home),
            "TMPDIR": str(episode.temporary),
            "PWD": str(spec.harness_root),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PI_CODING_AGENT_DIR": str(episode.agent_home),
            "PI_OFFLINE": "1",
            "PI_TELEMETRY": "0",
            "PI_SKIP_VERSION_CHECK": "1",
            **self._network(),
            **self._key(),
            **spec.extra_env,
        }

    def _network(self) -> dict[str, str]:
        if self._url and _is_loopback(self._url):
            return {}
        return {name: os.environ[name] for name in _NETWORK if name in os.environ}

    def _key(self) -> dict[str, str]:
        """The variables that hold keys, as far as this run needs them.

        Raises:
            ConfigurationError: an endpoint elsewhere, and no key for it.
        """
        if not self._url:
            return {name: os.environ[name] for name in _PROVIDER_KEYS if os.environ.get(name)}
        names = _WIRES[self.wire][2]
        for name in names:
            if os.environ.get(name):
                return {names[0]: os.environ[name]}
        if _is_loopback(self._url):
            return {names[0]: "none"}
        raise ConfigurationError(
            f"harness pi: the endpoint {self._url} needs a key in the environment variable {' or '.join(names)}"
        )

    def _write_home(self, episode: _Episode, model: str) -> None:
        """The agent's own configuration; the key stays in the environment."""
        _write_json(episode.agent_home / "settings.json", _SETTINGS)
        if not self._url:
            return
        api, _, names = _WIRES[self.wire]
        provider = {
            "baseUrl": _base_url(self.wire, self._url),
            "api": api,
            "apiKey": f"${names[0]}",
            "models": [{"id": model, "reasoning": self.reasoning, "contextWindow": 200_000, "maxTokens": 16_384}],
        }
        _write_json(episode.agent_home / "models.json", {"providers": {_PROVIDER: provider}})


class _Episode:
    """Where the agent's files of one episode lie: beside the harness, never in it."""

    def __init__(self, spec: EpisodeSpec) -> None:
        root = Path(spec.root)
        self.harness = spec.harness_root
        self.state = root / "state"
        self.home = self.state / "home"
        self.agent_home = self.state / "agent"
        self.temporary = self.state / "tmp"
        self.traces = root / "traces" / f"ep{spec.episode:03d}"
        self.session_id = f"session-{spec.episode:03d}"
        self._phases: list[tuple[str, int]] = []
        self._before = ""

    def begin(self) -> None:
        """Start from nothing, whatever an earlier attempt left."""
        if self.traces.parent.is_symlink() or not self.traces.parent.is_dir():
            remove(self.traces.parent)
        for folder in (self.state, self.traces):
            remove(folder)
        for folder in (self.home, self.agent_home, self.temporary, self.traces):
            folder.mkdir(parents=True)

    def end(self) -> None:
        """Only the session stays: what the agent kept elsewhere would be a memory that nobody measures."""
        remove(self.state)

    def begin_phase(self, phase: str) -> None:
        self._before = self._text()
        self._phases.append((phase, self._before.count("\n")))
        self._write_phases()

    def session(self) -> Session:
        """All that the agent has logged so far."""
        return read_session(self._text(), self._phases or self._noted_phases(), surface_finder(self.harness, SURFACES))

    def damage(self) -> str:
        """What the agent did to its own session log in the last phase; empty when nothing shows."""
        folder = self._open()
        if folder is None:
            return "its folder is no folder any more"
        os.close(folder)
        text = self._text()
        if not text.startswith(self._before):
            return "what it held before the phase is not there any more"
        return damage(text)

    def _open(self) -> int | None:
        return open_folder(self.state.parent, self.traces.parent.name, self.traces.name)

    def _text(self) -> str:
        """The session file's text; empty when there is none."""
        folder = self._open()
        if folder is None:
            return ""
        try:
            names = os.listdir(folder)  # noqa: PTH208 - by descriptor
            found = sorted(name for name in names if name.endswith(f"_{self.session_id}.jsonl"))
            data = read_regular(found[0], _SESSION_LIMIT, folder) if found else None
        finally:
            os.close(folder)
        return (data or b"").decode("utf-8", "replace")

    def _write_phases(self) -> None:
        folder = self._open()
        if folder is None:
            return  # the agent has put something else there, which the end of the phase tells
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink("phases.json", dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open("phases.json", flags, 0o644, dir_fd=folder), "w", encoding="utf-8") as file:
                json.dump(self._phases, file)
        finally:
            os.close(folder)

    def _noted_phases(self) -> list[tuple[str, int]]:
        folder = self._open()
        if folder is None:
            return []
        try:
            noted = json.loads(read_regular("phases.json", 1 << 20, folder) or b"[]")
            return [(str(phase), int(line)) for phase, line in noted]
        except (ValueError, TypeError):
            return []
        finally:
            os.close(folder)


def _judge(phase: str, outcome: Outcome, session: Session, damage: str) -> tuple[str, str]:
    """What went wrong in a phase and whose fault it is; two empty strings when it ended well.

    The exit status alone says little: the last answer in the log tells how the phase ended.
    """
    if outcome.interrupted:
        return f"phase {phase} was cut short from outside", "abort"
    if outcome.timed_out:
        raise PhaseTimeout(f"phase {phase} took longer than its time limit and was stopped")
    if damage:
        return f"phase {phase}: the agent's session log was cut, replaced or removed: {damage}", "apparatus"
    if session.last_phase != phase:
        said = bounded_text((outcome.stderr or outcome.stdout).strip()[-400:])
        return (
            f"phase {phase}: the agent ended with status {outcome.returncode} before it got an answer: {said}",
            "apparatus",
        )
    if session.stop_reason in ("stop", "length"):
        return "", ""
    if session.stop_reason == "error":
        sentence = f"phase {phase}: the model's endpoint failed: {bounded_text(session.error_message, 400)}"
        return sentence, _error_class(session.error_message)
    ended = "was stopped" if session.stop_reason == "aborted" else "ended in the middle of its work"
    return f"phase {phase}: the agent {ended} (exit status {outcome.returncode})", "apparatus"


def _error_class(message: str) -> str:
    """``configuration`` for what no retry can help: a wrong key, a model that does not exist."""
    status = re.match(r"\s*(\d{3})\b", message)
    return "configuration" if status and status.group(1) in ("401", "403", "404") else "apparatus"


def _counters(spec: EpisodeSpec, session: Session) -> dict[str, object]:
    counters: dict[str, object] = {f"phase_{phase}_turns": session.turns.get(phase, 0) for phase in spec.phase_prompts}
    counters |= {"tool_calls": session.tool_calls, "model_errors": session.model_errors}
    if session.tokens:
        counters["agent_log_tokens"] = dict(session.tokens)
    return counters


def _base_url(wire: str, url: str) -> str:
    """The URL as pi takes it: with the version for all wires but Anthropic's, whose version pi adds itself."""
    url = url.rstrip("/")
    if wire == "anthropic":
        return url.removesuffix("/v1")
    return url if urlsplit(url).path else url + _WIRES[wire][1]


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
