"""What `specmesh generate` can ask for: a flag for every field of a request, and the client's options from them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

BIAS = "expected ID=BIAS, such as 42=-1.5."
_FLAGS: Sequence[tuple[tuple[str, ...], dict[str, Any]]] = (
    (("--model",), {"help": "Only needed when the router serves several."}),
    (("--max-tokens", "max_output_tokens"), {"type": int, "default": 128, "show_default": True}),
    (("--temperature",), {"type": float, "help": "Default 1; 0 is greedy."}),
    (("--top-p",), {"type": float}),
    (("--top-k",), {"type": int}),
    (("--min-p",), {"type": float}),
    (("--repetition-penalty",), {"type": float}),
    (("--presence-penalty",), {"type": float}),
    (("--frequency-penalty",), {"type": float}),
    (("--logit-bias",), {"multiple": True, "metavar": "ID=BIAS",
                         "help": "Added to a token's logit; several with commas, or repeated."}),
    (("--seed",), {"type": int, "help": "The same seed gives the same text, whatever the drafts do (bit for bit with a "
                                        "float32 target on a CPU)."}),
    (("--rule",), {"type": click.Choice(["BLOCK", "TOKEN", "COUPLED"], case_sensitive=False)}),
    (("--stop",), {"multiple": True, "help": "A string that ends the text; may be repeated."}),
    (("--stop-token-ids",), {"help": "Token ids that end the text, separated by commas."}),
    (("--ignore-eos",), {"is_flag": True, "help": "Do not end at the model's own end token."}),
    (("--drafts",), {"default": "auto", "show_default": True,
                     "help": "auto, off, or arm names separated by commas."}),
    (("--max-block-length",), {"type": int, "help": "Upper bound on the tokens drafted in a step."}),
    (("--logprobs",), {"type": int, "help": "Log-probability of each token and of the n likeliest, in --json."}),
    (("--min-chunk-interval",), {"type": float, "metavar": "SECONDS",
                                 "help": "Gather the tokens of several steps for so long."}),
    (("--unary",), {"is_flag": True, "help": "The whole output at the end, in one message."}),
    (("--continuation-token-ids",), {"help": "Output so far, which goes on; token ids separated by commas."}),
    (("--priority",), {"type": int, "help": "Higher goes first, -10 to 10, as far as the caller may."}),
    (("--workload",), {"help": "A hint for the policy, one of the router's configured names."}),
    (("--request-id",), {"help": "For traces and logs."}),
    (("--steps/--no-steps",), {"default": True, "help": "Ask for a report of every step."}),
)  # fmt: skip


def request_flags(command: F) -> F:
    """Add a flag for every field of a request but its input."""
    decorated: Any = command
    for names, attributes in reversed(_FLAGS):
        decorated = click.option(*names, **attributes)(decorated)
    return decorated  # type: ignore[no-any-return]


def request_options(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The client's options: what was given, and drafts and step reports always. Raises `UsageError`."""
    options = {name: value for name, value in flags.items() if value not in (None, ()) and value is not False}
    options |= {"step_reports": options.pop("steps", False), **draft_options(options.pop("drafts"))}
    for name in ("stop_token_ids", "continuation_token_ids"):
        if name in options:
            options[name] = token_ids(options[name], f"--{name.replace('_', '-')}")
    if "logit_bias" in options:
        options["logit_bias"] = _logit_bias(options["logit_bias"])
    return options


def draft_options(drafts: str) -> Mapping[str, Any]:
    """Of `--drafts`."""
    if drafts.lower() in ("auto", "off"):
        return {"draft_mode": drafts.upper()}
    return {"draft_mode": "ONLY", "arms": [name.strip() for name in drafts.split(",")]}


def token_ids(text: str, flag: str) -> list[int]:
    """Raises `UsageError` naming the flag."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise click.UsageError(f"{flag}: expected token ids separated by commas.") from None


def _logit_bias(given: Sequence[str]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for pair in ",".join(given).split(","):
        token, _, bias = pair.partition("=")
        try:
            number, value = int(token), float(bias)
        except ValueError:
            raise click.UsageError(f"--logit-bias: {BIAS}") from None
        if number in biases:
            raise click.UsageError(f"--logit-bias: token id {number} is given twice.")
        biases[number] = value
    return biases
