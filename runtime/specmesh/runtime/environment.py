"""Settings that libraries read from the environment when they are imported; what is set already stays.

Every `__main__` imports this before anything else.
"""

import os

SETTINGS = {
    # An OpenMP thread that sleeps between two operators is late for the next, one that spins for long takes its core
    # from other services. The demo's target, 5 tokens on 2 cores, idle and beside a busy process: asleep at once
    # (OMP_WAIT_POLICY=PASSIVE) 63 and 69 ms, 10,000 turns first 44 and 123, GNU's own 300,000 turns 43 and 138.
    "GOMP_SPINCOUNT": "10000",
    # gRPC's event engine, on for Python since 1.80, hands each message through more threads: a round trip of an open
    # stream takes 0.28 ms with it and 0.14 ms without. A version without these experiments ignores their names.
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
}

for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)
