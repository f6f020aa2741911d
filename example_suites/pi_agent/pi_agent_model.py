"""The scripted model: at each prompt it looks at its notes and adds one; one more where it is asked to look twice."""

from importlib.util import find_spec

from pytest_proteus.testing import ModelServer, say, shell, write

#: Why the agent cannot be isolated on this machine; empty when it can, and when the user wants it without.
missing_sandbox = ""


def answer(conversation):
    """The steps that answer the prompt at hand; asked again before each step."""
    seen = len(conversation.results[-1].split()) if conversation.results else 0
    lesson = f"# Lesson {seen}\n\nThere were {seen} notes before this one.\n"
    steps = [shell("ls notes"), write(f"notes/lesson_{seen}.md", lesson)]
    if "your notes" in conversation.prompt:
        steps.append(write("notes/second_look.md", "# Second look\n\nNothing was missing.\n"))
    return [*steps, say("Done.")]


def scripted_server():
    """The server, not yet started; None where the extra [web] is not installed, and then the suite is skipped."""
    return ModelServer(answer) if find_spec("aiohttp") else None
