"""What waiting for the sessions of the last tick saves: the engine's own core, in the virtual time of `sent_ahead.py`.

Sessions begin in two halves, half a tick apart, and ask for one plain token after the other; an answer and the next
entry take `away` together. `of_ideal`: tokens a second as a share of what all sessions in every tick would give.
Prints JSON.

    python benchmarks/gather.py
"""

import argparse
import json

from sent_ahead import MS, Router

from specmesh.verifier.gather import Gather


class Never(Gather):
    """Starts every tick at once."""

    def wait_until(self, now_ns: int, num_ready: int) -> int | None:
        """Not at all."""
        return None


def main() -> None:
    """With and without waiting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--away-ms", nargs="+", type=float, default=[0.2, 0.8, 1.2, 2.4, 3.0])
    options = parser.parse_args()
    results = [
        {"away_ms": away, "waits": waits, "of_ideal": share_of_ideal(options, away, waits)}
        for away in options.away_ms
        for waits in (True, False)
    ]
    print(json.dumps({"sessions": options.sessions, "step_ms": options.step_ms, "results": results}, indent=2))


def share_of_ideal(options: argparse.Namespace, away_ms: float, waits: bool) -> float:
    """Of tokens a second."""
    mesh = argparse.Namespace(network_ms=away_ms / 2, draft_ms=0.0, step_ms=options.step_ms, length=0)
    router = Router(mesh, options.sessions, 0.0, 0, Gather() if waits else Never())
    found = router.measure(apart_ns=int(options.step_ms / 2 * MS))["tokens_per_second"]
    ideal: float = 1e3 * options.sessions / (options.step_ms + away_ms)
    return round(found / ideal, 3)


if __name__ == "__main__":
    main()
