"""The one driver of all real coding agents: an agent is a description, and what it does is read from its own log.

An episode is one session of the agent, its phases are prompts in that session; under framework continuity each phase is
a session of its own, and a note goes from one to the next. Nothing else but the harness tree goes from one episode to
the next: home, temporary files and session belong to the episode. How the agent is kept from doing harm
is the sandbox's business, what its endpoint costs is not known here.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from pytest_proteus.core.adapter import ActionEvent, EpisodeResult, EpisodeSpec, Surface
from pytest_proteus.core.budget import checkpoint_prompt
from pytest_proteus.core.continuity import Handoff
from pytest_proteus.core.disposition import Disposition
from pytest_proteus.core.endpoints import is_loopback
from pytest_proteus.core.errors import ConfigurationError, PhaseTimeout
from pytest_proteus.core.trees import read_regular, remove
from pytest_proteus.harnesses.install import FoundAgent, find_agent
from pytest_proteus.harnesses.round_trip import round_trip
from pytest_proteus.harnesses.session import Phases, Session, SurfaceOf
from pytest_proteus.harnesses.traces import bounded_text, open_folder, surface_finder
from pytest_proteus.metering.spans import Span, path_of
from pytest_proteus.sandbox import LocalSandbox, Outcome, Sandbox
from pytest_proteus.sandbox.none import SupervisorLost
from pytest_proteus.sandbox.relay import Relay, relay_to

#: What of our own environment a way to the network may need.
_NETWORK = (
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)

#: Wire protocol → the variables that may hold the key, that of the vendor's clients first.
KEYS: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "openai-responses": ("OPENAI_API_KEY",),
    "openai-chat": ("OPENAI_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}

#: Wire protocol → where its vendor serves it, and how a model's name begins that names the vendor, too.
_VENDORS: Mapping[str, tuple[str, str]] = {
    "anthropic": ("https://api.anthropic.com", "anthropic/"),
    "openai-responses": ("https://api.openai.com/v1", "openai/"),
    "gemini": ("https://generativelanguage.googleapis.com/v1beta", "google/"),
}

#: Wire protocol → how the path of a base URL ends there.
_VERSIONS = {"anthropic": "/v1", "openai-responses": "/v1", "openai-chat": "/v1", "gemini": "/v1beta"}

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: How a span ends by ``EpisodeResult.error_class``; by no other than that of how the agent ended.
_SPAN_STATES = {"abort": "abort", "budget": "abort", "timeout": "timeout"}

_LOG = "log.jsonl"
_LOG_LIMIT = 1 << 28
_STDOUT_LIMIT = 1 << 26

#: Longest page of instructions of a tree that is to work, in bytes, and seconds that the agent may take to start there.
_PAGE_LIMIT, _START_SECONDS = 1 << 20, 120.0

#: Folders within folders below an agent's home in which its log is looked for.
_LOG_DEPTH = 5

_INSTRUCTIONS = """\
# Instructions

This folder is yours to change. You start every session from what it holds; nothing else lasts.

- `{instructions}`: this page. You read it at the start of every session.
- `notes/`: what you want to know again, one Markdown file a subject.
- `{skills}/<name>/SKILL.md`: how to do something, with a front matter of `name` and `description`. You see the name and
  the description in every session, the rest when you open it.
- `tools/`: scripts that you run.
"""

#: What an agent is told that runs from one tree and edits another.
_STAGED = """\
You run from {active}, your working folder: the last version of your harness that works. It cannot be changed.
{candidate} is the version that you may change. Make every lasting change there, by its full path. It takes the place of
the other one in your next session, if it works."""

_NOTE = "# Notes\n\nNothing has been noted yet.\n"


@dataclass(frozen=True)
class Launch:
    """One phase of one episode, as an agent's description is told it.

    Args:
        model: the model's name, as the endpoint knows it.
        wire, url: protocol and base URL as the agent reaches it from its sandbox, the latter without a version; both
            empty for the agent's own providers.
        key: the variable that holds the key.
        reasoning: whether the model is asked to think before it answers.
        harness: the tree that the agent runs from, which is the working folder.
        home, agent_home, temporary: folders of the episode's own.
        traces: the folder that keeps the episode's log.
        session: an id for the session, a UUID.
        resume: the agent's own id of the session that goes on; empty in the first phase.
        turns: model turns that the phase may take.
        prompt: what the agent is asked, for one that does not read it on standard input.
    """

    model: str
    wire: str
    url: str
    key: str
    reasoning: bool
    harness: Path
    home: Path
    agent_home: Path
    temporary: Path
    traces: Path
    session: str
    resume: str
    turns: int
    prompt: str

    @property
    def versioned_url(self) -> str:
        """The base URL with the version that its wire has, for clients that do not add it themselves."""
        return _versioned(self.wire, self.url)


@dataclass(frozen=True)
class Agent:
    """What the driver needs to know of an agent; ``install.PACKAGES`` knows where it comes from.

    Args:
        name: name of the harness and of the package.
        wires: protocols that it speaks, the one that suits it best first.
        surfaces: its surfaces, relative to the harness tree, which is its working folder.
        tools: the agent's name of a tool → its role: ``write``, ``edit``, ``read`` or ``shell``; tools of none are left
            out.
        seed: path → text of the harness's first files.
        argv: what follows the program on the command line; the prompt goes in on standard input.
        environment: the agent's own variables.
        files: path below the episode's state, such as ``agent/settings.json`` → text; the key stays in the environment.
        read: reader of the log.
        damage: what shows that the log is not whole; empty when nothing does.
        log: where the agent logs: ``traces`` (a file below ``Launch.traces`` that this pattern matches), ``agent`` (one
            below the agent's home), ``document`` (one JSON value there that each phase writes anew, and that becomes a
            line of the log) or ``stdout``; then the pattern of its name, where ``{session}`` is the id.
        stop_signal: what ends it best; it has some seconds, then all its processes are killed.
        known: how the versions begin whose log can be read; empty where the log has a version of its own.
        role: a call's role where the tool's name does not settle it; None for an agent whose tools have one role each.
        own_providers: variables with keys that its own providers read; empty for an agent that is always given an
            endpoint, if only its vendor's.
    """

    name: str
    wires: tuple[str, ...]
    surfaces: tuple[Surface, ...]
    tools: Mapping[str, str]
    seed: Mapping[str, str]
    argv: Callable[[Launch], Sequence[str]]
    environment: Callable[[Launch], Mapping[str, str]]
    files: Callable[[Launch], Mapping[str, str]]
    read: Callable[[str, Phases, SurfaceOf], Session]
    damage: Callable[[str], str] = field(default=lambda _: "")
    log: tuple[str, str] = ("stdout", "")
    stop_signal: int = signal.SIGTERM
    known: str = ""
    role: Callable[[ActionEvent], str] | None = None
    own_providers: tuple[str, ...] = ()

    @property
    def edit_tools(self) -> frozenset[str]:
        """Tools that write; those of the shell for an agent that has no others."""
        writers = frozenset(tool for tool, role in self.tools.items() if role in ("write", "edit"))
        return writers or frozenset(tool for tool, role in self.tools.items() if role == "shell")

    def normalized(self, events: Sequence[ActionEvent]) -> list[str]:
        """The tool stream in words that all agents share: ``write``, ``edit``, ``read`` and ``shell``; other tools
        under the agent's own names, texts left out."""
        role = self.role or (lambda event: self.tools.get(event.tool or "", event.tool or ""))
        return [role(event) for event in events if event.tool is not None]


def first_files(instructions: str, skills: str) -> dict[str, str]:
    """The first files of a harness: a page of instructions, which tells where things go, and one note.

    Args:
        instructions: the file that the agent reads at the start of every session.
        skills: the folder that it looks for skills in.
    """
    return {instructions: _INSTRUCTIONS.format(instructions=instructions, skills=skills), "notes/index.md": _NOTE}


def usual_surfaces(instructions: str, skills: str, *writers: str) -> tuple[Surface, ...]:
    """The surfaces that all agents have: ``instructions``, ``notes``, ``skills`` (a folder a skill) and ``tools``.

    Args:
        instructions, skills: as for ``first_files``.
        writers: the agent's tools that write files.
    """
    tools = frozenset(writers)
    return (
        Surface("instructions", instructions, write_tools=tools, free_named=False),
        Surface("notes", "notes", write_tools=tools),
        Surface("skills", skills, unit="directory", write_tools=tools),
        Surface("tools", "tools", write_tools=tools, is_code=True),
    )


class AgentHarness:
    """A real coding agent; a subclass names which. One whose ``staged_activation`` is True runs each episode from a
    read-only copy of the last accepted tree, and edits another; one whose ``continuity_mode`` is ``framework`` begins
    each phase anew, with the note that the phase before left.

    Args:
        endpoint: wire protocol (``anthropic``, ``openai-chat``, ``openai-responses``, ``gemini``) → base URL as that
            vendor's own clients take it; the first one that the agent speaks is used. None for the agent's own
            providers where nothing shuts it in, else its vendor's endpoint: their usual key variables are handed over.
        agent: path of the agent's program; None to look for it (see ``harnesses.install.find_agent``).
        reasoning: whether the endpoint's model is asked to think before it answers.
        sandbox: where the agent runs; None for what the session says, and for ``none`` outside of one.

    Raises:
        ConfigurationError: no endpoint whose wire the agent speaks.
    """

    agent: ClassVar[Agent]
    name: str
    continuity_mode = "none"
    staged_activation = False
    disposition_in_files = False
    deterministic = False
    seeded = False
    _span: Span | None = None

    def __init__(
        self,
        endpoint: Mapping[str, str] | None = None,
        agent: str | Path | None = None,
        *,
        reasoning: bool = False,
        sandbox: Sandbox | None = None,
    ) -> None:
        # paths and addresses are private: they do not shape what the agent does
        self._url = ""
        self._agent = agent
        self.sandbox = sandbox
        self._found: FoundAgent | None = None
        self.wire = ""
        self.reasoning = reasoning
        if endpoint:
            spoken = self.agent.wires
            self.wire = next((wire for wire in endpoint if wire in spoken), "")
            if not self.wire:
                raise ConfigurationError(
                    f"harness {self.name}: no wire protocol {next(iter(endpoint))!r}; choose one of {', '.join(spoken)}"
                )
            self._url = _base_url(endpoint[self.wire], self.wire)

    def __init_subclass__(cls) -> None:
        cls.name = cls.agent.name

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

    def silent(self, model: str) -> str:
        """Why ``model`` does not answer at the endpoint of this harness, in one sentence; empty when it does, and where
        the agent's own providers are not known. Asks it for a word."""
        wire, url, name = self._endpoint(model)
        if not url:
            return ""
        key = next(iter(self._key(model).values()), "")
        return round_trip(wire, _versioned(wire, url), name, key)

    def unconfigured(self, model: str) -> str:
        """What nobody has configured for runs with ``model``, in one sentence; empty when nothing is missing, and where
        the agent is not on this machine."""
        try:
            self._program()
        except ConfigurationError:
            return ""
        try:
            has_key = bool(self._key(model))
        except ConfigurationError as error:
            return str(error)
        if has_key and model:
            return self._place.preflight(self._program().readable)
        key = KEYS[self.agent.wires[0]][0]
        way = "" if has_key else f"give --proteus-endpoint=[WIRE=]URL or set a key, such as {key}, and "
        missing = "model" if has_key else "model endpoint and no key" if model else "model, endpoint or key"
        named = way.removesuffix(", and ") if model else f"{way}name a model with --proteus-model or a model axis"
        return f"harness {self.name} has no {missing}: {named} (in `proteus run`: --endpoint, --model)"

    @property
    def _place(self) -> Sandbox:
        return self.sandbox or LocalSandbox()

    @property
    def _is_free(self) -> bool:
        """Whether the agent chooses among its own providers: nobody gave an endpoint, and no sandbox holds it."""
        return not self._url and bool(self.agent.own_providers) and self._place.name == "none"

    def surfaces(self) -> Sequence[Surface]:
        """``instructions`` (the file that the agent reads), ``notes``, ``skills`` (a folder a skill) and ``tools``."""
        return self.agent.surfaces

    def required_edit_tools(self) -> frozenset[str]:
        """The agent's tools that write files."""
        return self.agent.edit_tools

    def normalized(self, events: Sequence[ActionEvent]) -> list[str]:
        """The tool stream in words that all agents share: see ``Agent.normalized``."""
        return self.agent.normalized(events)

    def seed(self, harness_root: Path, rng_seed: int = 0) -> None:
        """Write the instructions and one note: the same for every seed."""
        for name, text in self.agent.seed.items():
            path = Path(harness_root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def install_disposition(self, harness_root: Path, disposition: Disposition) -> None:
        """Nothing is written: the prompts carry it.

        Raises:
            ConfigurationError: a disposition that is a patch.
        """
        if disposition.patch:
            raise ConfigurationError(
                f"harness {self.name} takes a disposition by prompt: give {disposition.label!r} a prompt_suffix, not a "
                "patch"
            )

    def disposition_fingerprint(self, harness_root: Path) -> str:
        """Always the same: no disposition lies in the tree."""
        return hashlib.sha256(b"").hexdigest()

    def validate_candidate(self, harness_root: Path) -> str:
        """Why the agent could not start from a tree, in one sentence; empty when it could, and for one that is not
        staged. It is started there in its sandbox, for its help page: no model is asked."""
        if not self.staged_activation:
            return ""
        page = next(surface.subdir for surface in self.agent.surfaces if surface.name == "instructions")
        text = read_regular(Path(harness_root) / page, _PAGE_LIMIT + 1)
        if text is None or not text.strip() or len(text) > _PAGE_LIMIT or not _is_text(text):
            return f"{page} is no page of text: the agent reads it at the start of every session"
        state = Path(harness_root).parent / "state"
        remove(state)
        state.mkdir()
        try:
            outcome = self._place.launch(
                [*self._program().argv, "--help"],
                env={**_environment_at(state, state), "PWD": str(harness_root)},
                cwd=harness_root,
                timeout=_START_SECONDS,
                writable=[state],
                readable=[*self._program().readable, harness_root],
            )
        finally:
            remove(state)
        if outcome.returncode:
            said = bounded_text((outcome.stderr or outcome.stdout).strip()[-400:])
            return f"{self.name} does not start there (exit status {outcome.returncode}): {said}"
        return ""

    def run_episode(self, spec: EpisodeSpec) -> EpisodeResult:
        """Run the phases in one session of the agent, each with the turns that ``spec.turns_of`` leaves it.

        Returns:
            Counters: ``phase_<phase>_turns``, ``tool_calls``, ``model_errors``; ``phase_ends``: phase → how it ended
            (``stop``, ``length``, ``turn_limit``, or ``no_turns`` for one that had none left); ``agent_log_tokens``:
            what the agent's own log says of its tokens, as far as it says anything; ``turn_limited_phases``: phases
            that used up their turns, ``unread_log_records``: what of its log could not be made use of, and
            ``refused_requests``: what it asked of its endpoint's machine elsewhere, all absent where there are none;
            ``endpoint_calls`` and ``endpoint_turns``: calls of the endpoint, and those that it answered, absent where
            nothing counts them.

        Raises:
            PhaseTimeout: a phase ran out of time.
            ConfigurationError: no model, no agent, no key, or a version whose log cannot be read.
        """
        with self._metered(spec) as ended:
            try:
                result = self._run_phases(spec)
            except PhaseTimeout:
                if not (self._span and self._span.spent):
                    raise
                result = EpisodeResult(spec.episode, False)
            if self._span and self._span.spent:  # however the agent took it
                said = "the session's budget is used up: calls of the model are turned away"
                result = replace(result, ok=False, error=said, error_class="budget")
            ended.append("complete" if result.ok else _SPAN_STATES.get(result.error_class, "errored"))
        return result

    def _run_phases(self, spec: EpisodeSpec) -> EpisodeResult:
        if not spec.model:
            raise ConfigurationError(
                f"harness {self.name} needs a model: name one with --proteus-model or a model axis"
            )
        episode = _Episode(spec, self.agent)
        episode.begin()
        so_far = _SoFar()
        handoff = self._handoff(spec)
        error, error_class = "", ""
        try:
            with self._counter(spec.model) as counter:
                for phase in spec.phase_prompts:
                    if handoff:
                        episode.begin_session(phase)
                    self._phase(spec, episode, phase, counter, so_far)
                    if handoff and so_far.ends[phase] != "no_turns":
                        done = [event for event in so_far.session.events if event.phase == phase]
                        handoff.finish(phase, done, interrupted=so_far.ends[phase] == "turn_limit")
        except _Failed as failed:
            error, error_class = failed.args
        finally:
            episode.end()
        counters = so_far.counters(spec)
        turns = so_far.used or so_far.session.turn
        notes = handoff.phases if handoff else {}
        return EpisodeResult(spec.episode, not error, turns, error, counters, error_class or "apparatus", notes)

    def _handoff(self, spec: EpisodeSpec) -> Handoff | None:
        """The episode's note, under framework continuity.

        Raises:
            ConfigurationError: native continuity, which would be a memory that nobody measures.
        """
        if spec.continuity_mode == "native" and self.continuity_mode == "native":
            raise ConfigurationError(f"harness {self.name}: continuity_mode must be 'none' or 'framework'")
        if spec.continuity_mode != "framework":
            return None
        return Handoff(spec, secrets=[key for key in self._key(spec.model).values() if key != "none"])

    @contextlib.contextmanager
    def _counter(self, model: str) -> Iterator[Relay | None]:
        """What counts the calls of the endpoint and ends a phase at its last turn; None where nothing can: at the
        agent's own providers, and behind a proxy."""
        url = self._endpoint(model)[1]
        if not url or any(name.lower() in ("http_proxy", "https_proxy") for name in _network(url)):
            yield None
            return
        with relay_to(url) as relay:
            yield relay

    def _phase(self, spec: EpisodeSpec, episode: _Episode, phase: str, counter: Relay | None, so_far: _SoFar) -> None:
        """Run a phase, and its checkpoint where the work has used up its turns.

        Raises:
            _Failed: it did not end well.
        """
        turns = spec.turns_of(phase, so_far.used)
        if not turns:
            so_far.ends[phase] = "no_turns"
            return
        reserve = spec.budget.reserve(turns)
        prompt = spec.prompt_of(phase, so_far.used)
        if spec.active_root is not None:
            prompt = f"{_STAGED.format(active=spec.active_root, candidate=spec.harness_root)}\n\n{prompt}"
        so_far.ends[phase] = self._part(spec, episode, phase, prompt, turns - reserve, counter, so_far)
        if so_far.ends[phase] == "turn_limit" and reserve:
            self._part(spec, episode, phase, checkpoint_prompt(reserve), reserve, counter, so_far)

    def _part(
        self,
        spec: EpisodeSpec,
        episode: _Episode,
        phase: str,
        prompt: str,
        turns: int,
        counter: Relay | None,
        so_far: _SoFar,
    ) -> str:
        """Launch the agent for at most so many turns; how it ended."""
        url = counter.address if counter else self._endpoint(spec.model)[1]
        launch = self._launch(spec, episode, prompt, url, turns, so_far.session)
        if not episode.begun:
            episode.write(self.agent.files(launch))
        episode.begin_phase(phase)
        if counter:
            counter.allow(turns)
        before = so_far.session.turn
        try:
            outcome = self._run(spec, launch, url)
        except SupervisorLost as lost:
            raise _Failed(f"phase {phase}: {lost}", "abort") from None
        so_far.refused += (outcome.refused or 0) + (counter.refused if counter else 0)
        damage = episode.keep_log(outcome)
        session = so_far.session = episode.session()
        turned = counter.turns if counter else session.turn - before
        so_far.used += turned
        so_far.turns[phase] = so_far.turns.get(phase, 0) + turned
        if counter:
            so_far.endpoint = {"calls": so_far.endpoint.get("calls", 0) + counter.calls, "turns": so_far.used}
        limited = bool(counter and counter.limited)
        so_far.turned_away += limited and session.stop_reason == "error"
        error, error_class = _judge(phase, outcome, session, damage, limited)
        if error:
            raise _Failed(error, error_class)
        return "turn_limit" if limited or session.stop_reason == "limit" else session.stop_reason

    def read_trace(self, root: Path, episode: int) -> Sequence[ActionEvent]:
        """What the agent's log says of an episode; empty when there is none."""
        return _Episode(EpisodeSpec(Path(root), episode, "", {}), self.agent).session().events

    @contextlib.contextmanager
    def _metered(self, spec: EpisodeSpec) -> Iterator[list[str]]:
        """Meter the calls of an episode; who uses it appends how the agent ended."""
        ended: list[str] = []
        if spec.meter is None or not spec.model:
            yield ended
            return
        upstream = self._endpoint(spec.model)[1]
        self._span = spec.meter.open(spec.episode, agent=self.name, model=spec.model, upstream=upstream)
        try:
            yield ended
        except PhaseTimeout:
            ended.append("timeout")
            raise
        except KeyboardInterrupt:
            ended.append("abort")
            raise
        finally:
            span, self._span = self._span, None
            log: Mapping[str, int] | None = None
            with contextlib.suppress(ConfigurationError):
                log = _Episode(spec, self.agent).session().tokens
            span.close(ended[-1] if ended else "errored", log)

    def _program(self) -> FoundAgent:
        """The agent on this machine.

        Raises:
            ConfigurationError: it is not there, or of a version whose log cannot be read.
        """
        if self._found is None:
            found = find_agent(self.name, self._agent)
            if found.version and not found.version.startswith(self.agent.known):
                raise ConfigurationError(
                    f"harness {self.name}: {found.argv[-1]} is version {found.version}, and only the log of "
                    f"{self.agent.known}x can be read; install it with: proteus agents install {self.name}"
                )
            self._found = found
        return self._found

    def _launch(
        self, spec: EpisodeSpec, episode: _Episode, prompt: str, url: str, turns: int, session: Session
    ) -> Launch:
        """What a phase is launched with; ``session`` is what the log says so far."""
        wire, _, model = self._endpoint(spec.model)
        return Launch(
            model=model,
            wire=wire,
            url=self._place.address(url),
            key=KEYS[wire][0] if wire else "",
            reasoning=self.reasoning,
            harness=_runs_from(spec),
            home=episode.home,
            agent_home=episode.agent_home,
            temporary=episode.temporary,
            traces=episode.traces,
            session=episode.ident,
            resume=(episode.told_ident(session) or episode.ident) if episode.begun else "",
            turns=turns,
            prompt=prompt,
        )

    def _endpoint(self, model: str) -> tuple[str, str, str]:
        """Wire, base URL and model's name: as given, or at the vendor whose key is in the environment; the URL is that
        of the meter while an episode is metered."""
        if self._url or self._is_free:
            return self.wire, self._span.url if self._span else self._url, model
        wire = _keyed_wire(self.agent.wires, model)
        if not wire:
            raise ConfigurationError(
                self.unconfigured(model) or f"harness {self.name} has no model endpoint and no key"
            )
        url, prefix = _VENDORS[wire]
        return wire, self._span.url if self._span else _base_url(url, wire), model.removeprefix(prefix)

    def _run(self, spec: EpisodeSpec, launch: Launch, url: str) -> Outcome:
        active = [spec.active_root] if spec.active_root is not None else []
        return self._place.launch(
            [*self._program().argv, *self.agent.argv(launch)],
            env=self._environment(spec, launch),
            cwd=launch.harness,
            stdin=launch.prompt,
            timeout=spec.phase_timeout,
            stop_signal=self.agent.stop_signal,
            stdout_limit=_STDOUT_LIMIT,
            writable=[*own_folders(spec), launch.home.parent, launch.traces],
            readable=[*self._program().readable, *active],
            endpoint=url,
        )

    def _environment(self, spec: EpisodeSpec, launch: Launch) -> dict[str, str]:
        """The whole environment of the agent; our own is not inherited, its paths may name the framework."""
        return {
            **_environment_at(launch.home, launch.temporary),
            "PWD": str(launch.harness),
            **self.agent.environment(launch),
            **_network(launch.url),
            **self._key(spec.model),
            **spec.extra_env,
        }

    def _key(self, model: str = "") -> dict[str, str]:
        """The variables that hold keys, as far as runs with ``model`` need them.

        Raises:
            ConfigurationError: an endpoint elsewhere, and no key for it.
        """
        if self._is_free:
            return {name: os.environ[name] for name in self.agent.own_providers if os.environ.get(name)}
        wire = self.wire or _keyed_wire(self.agent.wires, model)
        if not wire:
            return {}
        names = KEYS[wire]
        for name in names:
            if os.environ.get(name):
                return {names[0]: os.environ[name]}
        if is_loopback(self._url):
            return {names[0]: "none"}
        raise ConfigurationError(
            f"harness {self.name}: the endpoint {self._url} needs a key in the environment variable "
            f"{' or '.join(names)}"
        )


class _Failed(Exception):
    """A phase did not end well; args: a sentence, and the class of the error."""


@dataclass
class _SoFar:
    """What an episode has come to.

    Args:
        session: what its log says.
        ends: phase → how it ended.
        used: turns, as the endpoint's calls tell or else the log.
        turns: the same by phase.
        endpoint: its ``calls`` and ``turns``; empty where nothing counts them.
        refused: requests that led elsewhere.
        turned_away: errors in the log that are calls over the limit of turns.
    """

    session: Session = field(default_factory=Session)
    ends: dict[str, str] = field(default_factory=dict)
    used: int = 0
    turns: dict[str, int] = field(default_factory=dict)
    endpoint: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    turned_away: int = 0

    def counters(self, spec: EpisodeSpec) -> dict[str, object]:
        """What ``AgentHarness.run_episode`` counts."""
        session = self.session
        # some logs have what was turned away as an answer; others lose the last one
        counters: dict[str, object] = {
            f"phase_{name}_turns": self.turns.get(name) or session.turns.get(name, 0) for name in spec.phase_prompts
        }
        counters |= {"tool_calls": session.tool_calls, "model_errors": max(session.model_errors - self.turned_away, 0)}
        counters["phase_ends"] = dict(self.ends)
        if session.tokens:
            counters["agent_log_tokens"] = dict(session.tokens)
        counts = {
            "turn_limited_phases": sum(end == "turn_limit" for end in self.ends.values()),
            "unread_log_records": session.unknown_records + session.unreadable_lines,
            "refused_requests": self.refused,
        }
        counters |= {name: count for name, count in counts.items() if count}
        return counters | {f"endpoint_{name}": count for name, count in self.endpoint.items()}


class _Episode:
    """Where the agent's files of one episode lie: beside the harness, never in it."""

    def __init__(self, spec: EpisodeSpec, agent: Agent) -> None:
        root = Path(spec.root)
        self.agent = agent
        self.harness = spec.harness_root
        self.state = root / "state"
        self.home = self.state / "home"
        self.agent_home = self.state / "agent"
        self.temporary = self.state / "tmp"
        self.traces = root / "traces" / f"ep{spec.episode:03d}"
        # the same when the trace is read again
        self.ident = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{root}/{spec.episode}"))
        self.begun = False  # whether the session has
        self._phases: list[tuple[str, int]] = []
        self._before = self._earlier = ""  # what the log held before the part, and before the session
        self._is_one = True

    def begin(self) -> None:
        """Start from nothing, whatever an earlier attempt left."""
        if self.traces.parent.is_symlink() or not self.traces.parent.is_dir():
            remove(self.traces.parent)
        for folder in (self.state, self.traces):
            remove(folder)
        for folder in (self.home, self.agent_home, self.temporary, self.traces):
            folder.mkdir(parents=True)

    def begin_session(self, phase: str) -> None:
        """Begin a phase with a session, a home and a log of its own; what the earlier ones logged is kept."""
        self._end_session()
        self._earlier, self._is_one, self.begun = self._text(), False, False
        self.ident = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.traces}/{phase}"))
        remove(self.state)
        for folder in (self.home, self.agent_home, self.temporary):
            folder.mkdir(parents=True)

    def write(self, files: Mapping[str, str]) -> None:
        """The agent's own configuration, before it first runs."""
        for name, text in files.items():
            path = self.state / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def end(self) -> None:
        """Only the log stays: what the agent kept elsewhere would be a memory that nobody measures."""
        self._end_session()
        remove(self.state)

    def _end_session(self) -> None:
        """Remove the agent's own log of a phase's session, which is in the kept one."""
        if not self._is_one and self.agent.log[0] == "traces":
            with self._opened() as folder:
                for name in os.listdir(folder) if folder is not None else ():  # noqa: PTH208 - by descriptor
                    if fnmatch.fnmatch(name, self.agent.log[1].format(session=self.ident)):
                        os.unlink(name, dir_fd=folder)

    def begin_phase(self, phase: str) -> None:
        self._before, self.begun = self._text(), True
        self._phases.append((phase, self._before.count("\n")))
        self._keep("phases.json", json.dumps(self._phases))

    def session(self) -> Session:
        """All that the agent has logged so far."""
        phases = self._phases or self._noted_phases()
        surface_of = surface_finder(self.harness, self.agent.surfaces, also=self.harness.with_name("active"))
        return self.agent.read(self._text(), phases, surface_of)

    def told_ident(self, session: Session) -> str:
        """The agent's own id of the session that goes on; empty when its log does not tell it."""
        if self._is_one:
            return session.ident
        return self.agent.read(self._text()[len(self._earlier) :], [], lambda _: None).ident

    def keep_log(self, outcome: Outcome) -> str:
        """Keep what the agent has logged in the last phase.

        Returns:
            What the agent did to its log, as far as it shows; empty when nothing does.
        """
        with self._opened() as folder:
            if folder is None:
                return "its folder is no folder any more"
        text = self._text()
        place, _ = self.agent.log
        if place != "traces" or not self._is_one:
            if text != self._before:
                return "what it held before the phase is not there any more"
            if place == "stdout":
                text = self._before + _whole_lines(outcome.stdout)
            elif place == "document":
                text = self._before + _one_line(self._logged_at_home())
            elif place == "traces":
                text = self._earlier + _whole_lines(self._text_of(self.agent.log[1].format(session=self.ident)))
            else:
                text = self._earlier + self._logged_at_home()
            self._keep(_LOG, text)
        if not text.startswith(self._before):
            return "what it held before the phase is not there any more"
        return self.agent.damage(text[len(self._earlier) :])

    def _logged_at_home(self) -> str:
        """The newest log below the agent's home; no link is followed."""
        home = open_folder(self.state.parent, self.state.name, self.agent_home.name)
        if home is None:
            return ""
        try:
            found = sorted(self._logs_below(home))
            data = read_regular(found[-1][1], _LOG_LIMIT, home) if found else None
            if found and self.agent.log[0] == "document":
                os.unlink(found[-1][1], dir_fd=home)  # the next phase's is another
        finally:
            os.close(home)
        return _whole_lines((data or b"").decode("utf-8", "replace"))

    def _logs_below(self, home: int) -> Iterator[tuple[float, str]]:
        """Time and path of every file whose path has the form of the agent's logs."""
        pattern = self.agent.log[1].format(session=self.ident)
        with contextlib.suppress(OSError):
            for folder, folders, names, descriptor in os.fwalk(".", dir_fd=home, follow_symlinks=False):
                if folder.count("/") > _LOG_DEPTH:
                    folders.clear()  # what lies deeper is not the agent's doing
                for path in (f"{folder}/{name}".removeprefix("./") for name in names):
                    if fnmatch.fnmatch(path, pattern):
                        name = path.rpartition("/")[2]
                        yield os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mtime, path

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int | None]:
        folder = open_folder(self.state.parent, self.traces.parent.name, self.traces.name)
        try:
            yield folder
        finally:
            if folder is not None:
                os.close(folder)

    def _text(self) -> str:
        """The kept log's text; empty when there is none."""
        place, pattern = self.agent.log
        kept = self._text_of(_LOG)
        return kept or self._text_of(pattern.format(session=self.ident)) if place == "traces" and self._is_one else kept

    def _text_of(self, pattern: str) -> str:
        """The text of the first file beside the log whose name fits."""
        with self._opened() as folder:
            if folder is None:
                return ""
            names = os.listdir(folder)  # noqa: PTH208 - by descriptor
            found = sorted(name for name in names if fnmatch.fnmatch(name, pattern))
            data = read_regular(found[0], _LOG_LIMIT, folder) if found else None
        return (data or b"").decode("utf-8", "replace")

    def _keep(self, name: str, text: str) -> None:
        """Write a file beside the log, in place of whatever is there."""
        with self._opened() as folder:
            if folder is None:
                return  # the agent has put something else there, which the end of the phase tells
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, 0o644, dir_fd=folder), "w", encoding="utf-8", newline="") as file:
                file.write(text)

    def _noted_phases(self) -> list[tuple[str, int]]:
        with self._opened() as folder:
            if folder is None:
                return []
            data = read_regular("phases.json", 1 << 20, folder)
        try:
            return [(str(phase), int(line)) for phase, line in json.loads(data or b"[]")]
        except (ValueError, TypeError):
            return []


def own_folders(spec: EpisodeSpec) -> list[Path]:
    """What an agent may write for good: its tree, its task, and the note of framework continuity."""
    note = [spec.handoff_path.parent] if spec.continuity_mode == "framework" else []
    return [spec.harness_root, *filter(Path.is_dir, [Path(spec.root) / "task", *note])]


def _runs_from(spec: EpisodeSpec) -> Path:
    return spec.harness_root if spec.active_root is None else Path(spec.active_root)


def _environment_at(home: Path, temporary: Path) -> dict[str, str]:
    """What every agent's environment has."""
    return {"PATH": _PATH, "HOME": str(home), "TMPDIR": str(temporary), "LANG": "C.UTF-8", "TERM": "dumb"}


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def _whole_lines(text: str) -> str:
    """The text with a line end after its last line, so that what follows begins a line of its own."""
    return text if not text or text.endswith("\n") else text + "\n"


def _one_line(text: str) -> str:
    """A JSON value on one line; what is none stays a line that cannot be read."""
    try:
        return json.dumps(json.loads(text)) + "\n" if text else ""
    except (ValueError, RecursionError):
        return " ".join(text.split()) + "\n"


def _judge(phase: str, outcome: Outcome, session: Session, damage: str, limited: bool) -> tuple[str, str]:
    """What went wrong in a phase and whose fault it is; two empty strings when it ended well, as it does at the last of
    its turns (``limited``).

    The exit status alone says little: the last answer in the log tells how the phase ended.
    """
    if outcome.interrupted:
        return f"phase {phase} was cut short from outside", "abort"
    if outcome.exceeded:
        return f"phase {phase} was stopped: {outcome.exceeded}", "abort"
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
    if limited or session.stop_reason in ("stop", "length", "limit"):
        return "", ""
    if session.stop_reason == "error":
        sentence = f"phase {phase}: the model's endpoint failed: {bounded_text(session.error_message, 400)}"
        # no retry can help a wrong key, or a model that does not exist
        return sentence, "configuration" if session.status in (401, 403, 404) else "apparatus"
    if session.stop_reason == "denied":
        sentence = f"phase {phase}: the agent was not allowed to use a tool: {bounded_text(session.error_message, 400)}"
        return sentence, "configuration"
    ended = "was stopped" if session.stop_reason == "aborted" else "ended in the middle of its work"
    return f"phase {phase}: the agent {ended} (exit status {outcome.returncode})", "apparatus"


def _base_url(url: str, wire: str) -> str:
    """The URL without a slash at its end, and for Anthropic without the version, which its clients add themselves."""
    url = url.rstrip("/")
    return url.removesuffix("/v1") if wire == "anthropic" else url


def _versioned(wire: str, url: str) -> str:
    has_none = wire == "anthropic" or not path_of(url)
    return url + _VERSIONS[wire] if url and has_none else url


def _network(url: str) -> dict[str, str]:
    """What of our environment a way to ``url`` may need."""
    if url and is_loopback(url):
        return {}
    return {name: os.environ[name] for name in _NETWORK if name in os.environ}


def _keyed_wire(wires: Sequence[str], model: str) -> str:
    """The first of ``wires`` whose vendor's key is in the environment, the vendor that ``model`` names before others;
    empty when there is none."""
    held = [wire for wire in wires if wire in _VENDORS and any(os.environ.get(name) for name in KEYS[wire])]
    return next((wire for wire in held if model.startswith(_VENDORS[wire][1])), held[0] if held else "")
