"""The ``worldrl`` command: name → job module, ``key=value`` → settings, errors → exit codes.

Nothing heavy is imported before a command is chosen; ``worldrl --help`` imports neither torch nor Hydra.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from worldrl import __version__
from worldrl.aliases import OLD_COMMANDS, announce, current_command, current_tokens, ungrouped
from worldrl.commands import COMMANDS, Command
from worldrl.core.errors import GateError, SettingError, WorldrlError, nearest
from worldrl.core.extras import REINSTALL
from worldrl.streams import flush_streams, machine_fault, open_streams, say, show

OK, USER_ERROR, GATE_FAILED, INTERRUPTED = 0, 2, 3, 130
"""Exit codes; 1 is Python's own for an uncaught exception, which is a bug and shows its traceback."""


def default_run_dir(command: str, given: Mapping[str, str]) -> str:
    """Name the run directory of a command line (overrides by dotted key); the same line always gets the same name."""
    from worldrl.settings import MAY_CHANGE, WHERE

    preset = given.get("preset", "cpu")
    others = sorted(f"{key}={text}" for key, text in given.items() if key not in ("preset", *MAY_CHANGE, *WHERE))
    digest = hashlib.blake2b("\n".join(others).encode(), digest_size=3).hexdigest()
    return f"runs/{command}" + (f"-{preset}" if preset != "cpu" else "") + (f"-{digest}" if others else "")


def find_command(name: str) -> Command:
    """Look a command up by its present or old name; raises SettingError with the nearest name."""
    name, notes = current_command(name)
    announce(notes)
    if name not in COMMANDS:
        raise SettingError(f"unknown command {name!r}{nearest(name, COMMANDS)} (worldrl --help lists all)")
    return COMMANDS[name]


def in_present_names(command: Command, tokens: Sequence[str]) -> list[str]:
    """Write a command line in present names, and print what changed."""
    current, notes = current_tokens(command.name, tokens)
    announce(notes)
    if notes and command.owns_run_dir and all("=" in token for token in tokens):
        # An earlier version hashed the old names, so the same line has its run under another directory name.
        earlier = {key: text for key, _, text in (token.partition("=") for token in tokens)}
        own = earlier_run_dir(command.name, earlier)
        if "run_dir" not in earlier and own:
            current.append(f"run_dir={own}")
    return current


def earlier_run_dir(command: str, given: Mapping[str, str]) -> str:
    """Return the default run directory of an earlier version if it exists, else an empty text."""
    names = (command, *(old for old, new in OLD_COMMANDS.items() if new == command))
    found = (default_run_dir(name, given) for name in names)
    return next((folder for folder in found if (Path(folder) / "config.yaml").is_file()), "")


def compose_command(command: Command, tokens: Sequence[str]) -> Any:
    """Compose a command's settings, with its run directory filled in."""
    from worldrl.settings import compose, parse_overrides

    given = parse_overrides(spelt_out(command, tokens))
    if any("hf://" in text for text in given.values()):
        from worldrl.core.storage.hub import with_hub_folders

        given = {key: with_hub_folders(text) for key, text in given.items()}
    schema = command.schema(given)
    if command.owns_run_dir and any(item.name == "run_dir" for item in fields(schema)):
        where = "-".join(filter(None, (command.name, given.get(command.positional, ""))))
        others = {key: text for key, text in given.items() if key != command.positional}
        given.setdefault("run_dir", default_run_dir(where, others))
    return compose(command.name, schema, given)


def spelt_out(command: Command, tokens: Sequence[str]) -> list[str]:
    """Write a first word without ``=`` as the positional setting, and flags as the settings that they stand for."""
    flags = [token for token in tokens if token.startswith("--") and token[2:] in command.flags]
    tokens = [token for token in tokens if token not in flags] + [f"{flag[2:]}=true" for flag in flags]
    if command.positional and tokens and "=" not in tokens[0]:
        return [f"{command.positional}={tokens[0]}", *tokens[1:]]
    return ungrouped(command.groups, tokens)


def show_config(arguments: Sequence[str]) -> int:
    """``worldrl config show COMMAND [key=value ...]``."""
    if len(arguments) < 2 or arguments[0] != "show":
        raise SettingError("config knows one verb: worldrl config show COMMAND [key=value ...]")
    from worldrl.settings import to_yaml

    command = find_command(arguments[1])
    show(to_yaml(compose_command(command, in_present_names(command, arguments[2:]))))
    return OK


def run_command(command: Command, tokens: Sequence[str]) -> int:
    """Compose the settings and run the job; after an interruption print the command that resumes."""
    job, _ = command.load()
    tokens = in_present_names(command, tokens)
    if "--help" in tokens or "-h" in tokens:
        from worldrl.settings import as_plain, compose_plain, parse_overrides, presets_of
        from worldrl.usage import command_help

        words = [token for token in tokens if token not in ("--help", "-h")]
        parts = [word for word in words if "=" not in word]
        if len(parts) > 1:
            raise SettingError(f"--help: give one group of settings, got {' '.join(parts)}")
        given = parse_overrides(spelt_out(command, [word for word in words if word not in parts]))
        schema = command.schema(given)
        defaults = as_plain(compose_plain(command.name, schema, given))
        known = presets_of(command.name)
        show(command_help(command.name, command.summary, command.examples, schema, defaults, known, *parts))
        return OK
    from worldrl.settings import COMMAND_LINE, resume_command

    settings = compose_command(command, tokens)
    COMMAND_LINE.set((command.name, *tokens))
    try:
        job(settings)
    except KeyboardInterrupt:
        again = resume_command(command.name)
        where = f"the run is in {settings.run_dir}; continue with" if command.owns_run_dir else "start again with"
        say(f"\nworldrl: interrupted; {where}: {again}")
        return INTERRUPTED
    return OK


def dispatch(arguments: Sequence[str]) -> int:
    """Choose the action from the command line; returns the exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        from worldrl.usage import general_help

        show(general_help({command.name: command.summary for command in COMMANDS.values()}))
        return OK
    if arguments[0] == "--version":
        show(f"worldrl {__version__}\n")
        return OK
    if arguments[0] == "config":
        return show_config(arguments[1:])
    return run_command(find_command(arguments[0]), arguments[1:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; a deliberate error or a missing package becomes one line on stderr."""
    open_streams()
    code = run(sys.argv[1:] if arguments is None else arguments)
    flush_streams()
    return code


def run(arguments: Sequence[str]) -> int:
    """Dispatch, and turn errors into exit codes."""
    try:
        return dispatch(arguments)
    except GateError as error:
        say(f"worldrl: gate failed: {error}")
        return GATE_FAILED
    except WorldrlError as error:
        say(f"worldrl: {error}")
        return USER_ERROR
    except ModuleNotFoundError as error:
        if error.name is None or "." in error.name:
            raise  # a module of worldrl, or of an incomplete package: a bug
        say(
            f"worldrl: {error.name} is not installed for {sys.executable}; install worldrl's packages with: {REINSTALL}"
        )
        return USER_ERROR
    except KeyboardInterrupt:
        say("\nworldrl: interrupted before anything was written")
        return INTERRUPTED
    except Exception as error:
        if (fault := machine_fault(error)) is None:
            raise  # a bug
        say(f"worldrl: {fault}")
        return USER_ERROR
