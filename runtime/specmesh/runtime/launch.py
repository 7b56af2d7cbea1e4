"""The command line of a service: `python -m specmesh.NAME --config FILE --set key=value`."""

import argparse
import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from specmesh.runtime.config import ConfigError, LogConfig, M, load_config
from specmesh.runtime.logs import configure_logging

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of a service's own that sets one key, as `--set KEY=VALUE` does."""

    name: str
    key: str
    help: str


def run_service(
    name: str,
    config_class: type[M],
    serve: Callable[[M], Awaitable[None]],
    arguments: Sequence[str] | None = None,
    flags: Sequence[Flag] = (),
) -> int:
    """Read the configuration and run `serve` until it returns. The result is the exit status.

    A bad setting (`ConfigError`, also from `serve`: a model that cannot be loaded) is one line on standard error and
    status 2. If the configuration has a `log` section (`LogConfig`) it is obeyed.
    """
    options = _parser(name, flags).parse_args(arguments)
    if options.exit_with_stdin:
        threading.Thread(target=_terminate_at_end_of_input, daemon=True).start()
    try:
        config = load_config(
            config_class,
            path=options.config,
            environ=os.environ,
            overrides=_overrides(options.set),
            flags=_given(flags, options),
            prefix=f"SPECMESH_{name.upper()}",
            here=True,
        )
        log = getattr(config, "log", LogConfig())
        configure_logging(json_lines=log.json_lines, level=log.level)
        asyncio.run(_run(serve, config))
    except ConfigError as error:
        sys.stderr.write(f"specmesh {name}: {error}\n")
        return 2
    except KeyboardInterrupt:  # while a model loads; later it means to drain
        return 130
    return 0


async def in_own_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread that ends with it.

    A thread that has run OpenMP keeps its helpers, and with more of them than cores GNU's OpenMP lets all fall asleep
    early, the engine's too: plain decoding of the demo's target is a third slower.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="load")
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work)
    finally:
        pool.shutdown(wait=False)


async def _run(serve: Callable[[M], Awaitable[None]], config: M) -> None:
    await serve(config)


def _parser(name: str, flags: Sequence[Flag]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"specmesh {name}")
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration (TOML)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one setting, e.g. server.port=50051"
    )
    parser.add_argument(
        "--exit-with-stdin",
        action="store_true",
        help="drain and end when standard input ends, as it does with a parent",
    )
    for flag in flags:
        parser.add_argument(flag.name, metavar="VALUE", help=f"{flag.help} (key `{flag.key}`)")
    return parser


def _given(flags: Sequence[Flag], options: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """Key and text of each flag that was given, by its name."""
    given = {flag: getattr(options, flag.name.removeprefix("--").replace("-", "_")) for flag in flags}
    return {flag.name: (flag.key, text) for flag, text in given.items() if text is not None}


def _terminate_at_end_of_input() -> None:
    # Works where a parent cannot send SIGTERM (Windows), and when the parent was killed. Not through sys.stdin: its
    # lock would be held at the interpreter's end.
    while os.read(0, 4096):
        pass
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)  # interrupts the loop's wait
    else:
        signal.raise_signal(signal.SIGTERM)


def _overrides(settings: Sequence[str]) -> dict[str, str]:
    pairs = [setting.partition("=") for setting in settings]
    for key, equals, _ in pairs:
        if not equals or not key:
            raise ConfigError(f"--set {key}: expected KEY=VALUE")
    return {key: value for key, _, value in pairs}
