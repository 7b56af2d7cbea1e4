"""What a tick on a GPU does besides computing."""

from collections import Counter

import pytest
import torch
from devices import ON_GPU
from torch.profiler import ProfilerActivity, profile
from verifier_models import tiny_model
from verifier_parts import Stepper, make_spec, numbers

from specmesh.runtime.types import Rule, Sampling

LAWS = (
    Sampling(temperature=0.0),
    Sampling(temperature=0.7, top_p=0.9),
    Sampling(temperature=1.7, top_k=20, min_p=0.01),
    Sampling(temperature=0.9, repetition_penalty=1.3, frequency_penalty=0.4, logit_bias=((3, 1.0),)),
)


@pytest.mark.gpu
@ON_GPU[1]
@pytest.mark.parametrize("chunk", [False, True])
def test_a_tick_copies_to_the_host_once(chunk: bool) -> None:
    """Whatever the sessions sample by and ask for, beside a chunk of a prompt as well."""
    model = tiny_model(device="cuda").paged
    stepper = Stepper(model, num_blocks=200)
    model.warm_up(64, 64)
    for index in range(8):
        spec = make_spec(
            [index, 5, 7], session_id=index, rule=Rule.COUPLED, verify_key=index, sampling=LAWS[index % 4],
            logprobs=index % 3 or None,
        )  # fmt: skip
        stepper.open(spec)
        stepper.step(index, 3, [9, 8])
    positions = {key: session.position for key, session in stepper.core.sessions.items()}
    if chunk:
        stepper.open(make_spec(numbers(0, 400), session_id=99))
    for (_, session_id), position in positions.items():
        stepper.send(session_id, position, [4, 4, 4])
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiled:
        stepper.tick()
        torch.cuda.synchronize()
    ran = Counter(event.name for event in profiled.events())
    assert sum(count for name, count in ran.items() if "Memcpy DtoH" in name) == 1, ran
