"""The `specmesh` command. It starts services and talks to them; it never imports torch."""

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import click
from rich.console import Console

from specmesh.client import Prompt
from specmesh.command.connection import Connection, connection_options, run, usage_errors_told
from specmesh.command.generate_options import draft_options, request_flags, request_options, token_ids

CHAT_ROLES = ("system", "user")
PASS_ON = {"ignore_unknown_options": True, "help_option_names": ["--help-command"]}


PLAIN_WIDTH = 120


def _console(**options: bool) -> Console:
    """Where tables go: as wide as the terminal, and wide enough for them in a file."""
    console = Console(**options)  # type: ignore[arg-type]
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="specmesh")
def main() -> None:
    """Exact speculative decoding as a service mesh.

    `specmesh demo` shows it; `specmesh up` starts a mesh on this machine, `specmesh generate PROMPT` uses it.
    """


def _service(name: str, summary: str) -> None:
    @main.command(name, help=summary, context_settings=PASS_ON, add_help_option=False)
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        from specmesh.command.service import become

        become(f"specmesh.{name}", arguments)


_service("verifier", "Run one verifier: --config FILE, --set KEY=VALUE.")
_service("draft", "Run one draft service: --config FILE, --set KEY=VALUE.")
_service("router", "Run one router: --config FILE, --set KEY=VALUE.")


@main.command()
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="The mesh (TOML); default: the demo.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the router (0: any); default 50050.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    help="The verifier's. In float32 on a CPU a seed gives the same text, bit for bit.",
)
@click.option("--print-config", is_flag=True, help="Print the mesh as a file for --config; start nothing.")
def up(config: Path | None, port: int | None, dtype: str | None, print_config: bool) -> None:
    """Start a whole mesh on this machine: verifier, drafts and router, each a process of its own."""
    from specmesh.command.up import print_mesh, run_up

    console = _console(stderr=True)
    if print_config:
        sys.exit(print_mesh(config, port, dtype, sys.stdout, console))
    sys.exit(run_up(config, port, dtype, console))


@main.command()
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), default="build/demo.json", show_default=True)
@click.option("--max-tokens", type=click.IntRange(1), default=128, show_default=True, help="Per prompt.")
def demo(output: Path, max_tokens: int) -> None:
    """Start a mesh of real models, generate prose, code and a chat answer, and show what each draft did."""
    from specmesh.command.working import working

    console = _console(stderr=True)
    with working(console, "starting"):
        from specmesh.command.demo import run_demo
    sys.exit(run_demo(output, max_tokens, _console(), console))


@main.command()
@click.argument("prompt", required=False)
@click.option("--file", type=click.File(encoding="utf-8"), help="Read the prompt from a file; - is standard input.")
@click.option("--tokens", help="Token ids separated by commas, instead of a text.")
@click.option("--chat", is_flag=True, help="The prompt is a user's message; the model's own chat template is used.")
@click.option("--system", help="A system message, with --chat.")
@request_flags
@click.option("--timeout", type=float, default=300.0, show_default=True, help="Seconds.")
@click.option("--trace", is_flag=True, help="Draw where the time of each step went; traced by the mesh, if it traces.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text and table.")
@connection_options
def generate(
    connection: Connection,
    prompt: str | None,
    file: TextIO | None,
    tokens: str | None,
    chat: bool,
    system: str | None,
    as_json: bool,
    trace: bool,
    timeout: float,
    **flags: Any,  # noqa: ANN401  those of `request_flags`, by name
) -> None:
    """Generate from PROMPT and show the text as it comes, then what each arm did."""
    from specmesh.command.generate import generate as generate_text
    from specmesh.command.waterfall import new_traceparent

    with usage_errors_told(as_json=as_json):
        if trace and (as_json or not flags["steps"]):
            raise click.UsageError("--trace goes neither with --json nor with --no-steps.")
        given: Any = request_options(flags)
        text = prompt_of(prompt, file, tokens, chat=chat, system=system)
    traceparent = new_traceparent() if trace else None
    connect = partial(connection.client, timeout, traceparent)
    console = _console(stderr=True, highlight=False)
    shown = generate_text(
        connect, text, given, as_json=as_json, output=sys.stdout, console=console, traceparent=traceparent
    )
    run(shown, connection, as_json=as_json)


def prompt_of(
    prompt: str | None, file: TextIO | None, tokens: str | None, *, chat: bool, system: str | None
) -> str | list[int] | list[tuple[str, str]]:
    """What is asked for, from one source. Raises `UsageError` rather than leave anything that was given unused."""
    sources = {"PROMPT": prompt, "--file": file, "--tokens": tokens}
    given = [name for name, source in sources.items() if source is not None]
    if not given:
        raise click.UsageError("Give one of PROMPT, --file FILE (--file - reads standard input) and --tokens.")
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude each other: each is the prompt.")
    if system is not None and not chat:
        raise click.UsageError("--system goes with --chat only.")
    if tokens is not None:
        if chat:
            raise click.UsageError("--tokens and --chat exclude each other: a chat is made of text.")
        return token_ids(tokens, "--tokens")
    text = prompt or "" if file is None else _read(file)
    return [*([] if system is None else [("system", system)]), ("user", text)] if chat else text


def _read(file: TextIO) -> str:
    try:
        return file.read()
    except UnicodeDecodeError:
        raise click.UsageError("--file: this is not UTF-8 text.") from None


ARMS_HELP = """List the arms: a draft pool at one model digest each.

\b
replicas        how many are ready now
acceptance      tokens kept / tokens drafted in the latest steps; older ones fade
ms to a block   median wait for the latest 101 blocks, network included
share of steps  of all steps with a draft in the last minute
why             what keeps the arm out

\b
READY           in use
PROBING         being tried, away from requests
COOLING         rests after a failure, then is tried again
DRAINING        its process is ending
INCOMPATIBLE    another vocabulary or contract than the target's
QUARANTINED     sent what it did not sample; needs an operator
"""


@main.command(help=ARMS_HELP)
@click.option("--model", default="", help="Only arms of this target.")
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.1), help="Seconds between two, with --watch; default 1.")
@click.option("--json", "as_json", is_flag=True)
@connection_options
def drafts(connection: Connection, model: str, watch: bool, interval: float | None, as_json: bool) -> None:
    """List the arms."""
    from specmesh.command.drafts import show_drafts

    if watch and as_json:
        raise click.UsageError("--watch and --json exclude each other.")
    if interval is not None and not watch:
        raise click.UsageError("--interval goes with --watch only.")
    seconds = (interval or 1.0) if watch else None
    shown = show_drafts(connection.client, _console(), model=model, as_json=as_json, interval=seconds)
    run(shown, connection, as_json=as_json)


@main.command()
@click.option("--json", "as_json", is_flag=True)
@connection_options
def models(connection: Connection, as_json: bool) -> None:
    """List the targets that are served."""
    from specmesh.command.drafts import show_models

    run(show_models(connection.client, _console(), as_json=as_json), connection, as_json=as_json)


@main.command()
@click.option("--requests", type=click.IntRange(1, 100_000), default=32, show_default=True)
@click.option("--concurrency", type=click.IntRange(1, 10_000), default=8, show_default=True)
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True)
@click.option("--temperature", type=float, default=0.0, show_default=True)
@click.option("--drafts", default="auto", show_default=True, help="auto, off, or arm names separated by commas.")
@click.option(
    "--file", type=click.File(encoding="utf-8"), help="Prompts, one a line; default: a few of prose and code."
)
@click.option("--tokens", help="One prompt of token ids separated by commas, instead of texts.")
@click.option("--timeout", type=float, default=300.0, show_default=True, help="Seconds, of one request.")
@click.option("--json", "as_json", is_flag=True)
@connection_options
def bench(
    connection: Connection,
    requests: int,
    concurrency: int,
    max_tokens: int,
    temperature: float,
    drafts: str,
    file: TextIO | None,
    tokens: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Put a bounded load on a router: tokens per second, latency percentiles."""
    from specmesh.command.bench import PROMPTS, bench_table, run_load

    if file is not None and tokens is not None:
        raise click.UsageError("--file and --tokens exclude each other.")
    prompts: Sequence[Prompt] = [line for line in _read(file).splitlines() if line] if file else PROMPTS
    if not prompts:
        raise click.UsageError("--file: there is no prompt in it.")
    if tokens is not None:
        prompts = [token_ids(tokens, "--tokens")]
    options = {
        "max_output_tokens": max_tokens,
        "temperature": temperature,
        "timeout": timeout,
        **draft_options(drafts),
    }
    load = run_load(
        partial(connection.client, timeout),
        requests=requests,
        concurrency=concurrency,
        options=options,
        prompts=prompts,
        on_progress=partial(click.echo, err=True),
    )
    report = run(load, connection, as_json=as_json)
    if as_json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        _console().print(bench_table(report))
    if report["failures"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
