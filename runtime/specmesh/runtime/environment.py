"""Settings that libraries read from the environment when they are imported; what is set already stays.

Every `__main__` imports this before anything else.
"""

import os

SETTINGS = {
    # Services share cores, and OpenMP threads that spin while they wait take them from each other (a forward pass of
    # two threads beside a busy process: 830 ms spinning, 70 to 100 ms not).
    "OMP_WAIT_POLICY": "PASSIVE",
    # gRPC's event engine, on for Python since 1.80, hands each message through more threads: a round trip of an open
    # stream takes 0.28 ms with it and 0.14 ms without. A version without these experiments ignores their names.
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
}

for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)
