"""``python -m dynamo_go``: tools around the router. Each command loads its own modules, and only those."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

# Command: the module with its main(arguments), and its job.
_COMMANDS = {
    "events": ("._events", "print an engine's KV cache events, live or from hex, as JSON lines"),
    "explain": ("._explain", "show why a prompt goes to which worker, as a table"),
    "router": ("._standalone", "route to the workers of a Dynamo deployment, as a process of it"),
    "worker": ("._worker", "be a worker of a Dynamo deployment without a GPU"),
    "serve": (".serve", "serve the OpenAI API over vLLM and SGLang servers, routed by their KV caches"),
    "frontend": (".frontend", "the same under the name of Dynamo's frontend"),
    "mocker": (".mocker", "run an inference engine without a GPU, with real KV events"),
    "demo": (".demo.cli", "compare KV routing with round robin and random on a public trace"),
    "version": ("._version", "print the versions of the package, the library and its C interface"),
}


def _parser() -> argparse.ArgumentParser:
    commands = "\n".join(f"  {name:10}{text}" for name, (_, text) in _COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m dynamo_go",
        description="Tools around a KV-cache-aware request router.",
        epilog=f"commands:\n{commands}\n\n'python -m dynamo_go COMMAND --help' tells more, with examples.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="the same as the command 'version'")
    parser.add_argument("command", nargs="?", choices=_COMMANDS, metavar="COMMAND", help="one of the commands below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="what the command takes")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; gives its exit status."""
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # who reads has enough
        # Python flushes standard output once more as it exits: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.version:
        options.command, options.arguments = "version", []
    if options.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        module = importlib.import_module(_COMMANDS[options.command][0], __package__)
        status: int = module.main(options.arguments)
    except KeyboardInterrupt:  # before the command was ready for it
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
