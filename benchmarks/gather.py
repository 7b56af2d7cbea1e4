"""What waiting for the sessions of the last tick saves: the engine's own core, in the virtual time of `sent_ahead.py`.

Sessions begin in two halves, half a tick apart, and ask for one plain token after the other; an answer and the next
entry take `away` together. `router_ms`: what a session's step takes of its router, which does one after the other; half
of the sessions have one router, half another. `of_ideal`: tokens a second as a share of what all sessions in every tick
would give, were routers free. Prints JSON.

    python benchmarks/gather.py
"""

import argparse
import json
import random

from sent_ahead import MS, Router

from specmesh.verifier.gather import Gather
from specmesh.verifier.session import Session


class BusyRouters(Router):
    """Two, each of which does one step after the other; messages arrive in an order that nobody chose."""

    def __init__(self, mesh: argparse.Namespace, sessions: int, router_ns: int, gather: Gather) -> None:
        self._router_ns, self._free_ns, self._shuffled = router_ns, [0, 0], random.Random(2)
        super().__init__(mesh, sessions, 0.0, 0, gather)

    def _send(self, session: Session, position: int, in_ns: int) -> None:
        at = session.key[1] // 2 % 2
        begun_ns = max(self.backend.now_ns + in_ns, self._free_ns[at])
        self._free_ns[at] = begun_ns + int(self._router_ns * self._shuffled.uniform(0.9, 1.1))
        super()._send(session, position, self._free_ns[at] - self.backend.now_ns)


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
    parser.add_argument("--router-ms", nargs="+", type=float, default=[0.0, 0.1, 0.6])
    options = parser.parse_args()
    results = [
        {
            "away_ms": away, "router_ms": router,
            "waiting": share_of_ideal(options, away, router, Gather()),
            "at_once": share_of_ideal(options, away, router, Never()),
        }
        for away in options.away_ms
        for router in options.router_ms
    ]  # fmt: skip
    print(json.dumps({"sessions": options.sessions, "step_ms": options.step_ms, "results": results}, indent=2))


def share_of_ideal(options: argparse.Namespace, away_ms: float, router_ms: float, gather: Gather) -> float:
    """Of tokens a second."""
    mesh = argparse.Namespace(network_ms=away_ms / 2, draft_ms=0.0, step_ms=options.step_ms, length=0)
    router = BusyRouters(mesh, options.sessions, int(router_ms * MS), gather)
    found = router.measure(apart_ns=int(options.step_ms / 2 * MS))["tokens_per_second"]
    ideal: float = 1e3 * options.sessions / (options.step_ms + away_ms)
    return round(found / ideal, 3)


if __name__ == "__main__":
    main()
