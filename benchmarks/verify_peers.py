"""The same step by others: torch operations, vLLM's kernels and FlashSpec's, where their packages can be imported.

Each takes raw bfloat16 target logits, ends with accepted counts and next tokens on the device, waits for nothing and
can be captured. The others need the draft's full distribution: they are given it, made before.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from verify_inputs import LENGTH, ROWS, Step

from specmesh.runtime.types import Sampling

Work = Callable[[Tensor], object]


def peers(step: Step, sampling: Sampling) -> dict[str, Work | str]:
    """By name: the work, or why there is none."""
    makers: dict[str, Callable[[], Work]] = {
        "torch": lambda: by_torch(step, sampling),
        "vllm_token": lambda: by_vllm(step, sampling, block_rule=False),
        "vllm_block": lambda: by_vllm(step, sampling, block_rule=True),
        "flashspec_token": lambda: by_flashspec(step, sampling),
    }
    found: dict[str, Work | str] = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except ImportError as error:
            found[name] = f"not installed: {error}"
    return found


def _drafted(step: Step) -> Tensor:
    return torch.tensor([block.draft_token_ids for block in step.blocks], device=step.draft.device)


def by_torch(step: Step, sampling: Sampling) -> Work:
    """Rule TOKEN as one would write it with torch: softmax, gather, compare, residual, arg-max of p / exponential."""
    drafted = _drafted(step)
    shape = (step.batch, LENGTH, step.vocabulary_size)
    draft = torch.softmax(step.draft.float().view(shape) / sampling.temperature, dim=-1)
    session = torch.arange(step.batch, device=drafted.device)
    no_draft = torch.zeros_like(draft[:, :1])
    padded = torch.cat((draft, no_draft), dim=1)

    def work(logits: Tensor) -> tuple[Tensor, Tensor]:
        scores = logits.view(step.batch, ROWS, -1).float() / sampling.temperature
        if sampling.top_k:
            scores = scores.masked_fill(scores < scores.topk(sampling.top_k).values[..., -1:], -torch.inf)
        if sampling.top_p < 1:
            ordered, order = scores.sort(dim=-1, descending=True)
            probs = ordered.softmax(dim=-1)
            ordered = ordered.masked_fill(probs.cumsum(dim=-1) - probs >= sampling.top_p, -torch.inf)
            scores = torch.empty_like(scores).scatter_(-1, order, ordered)
        target = torch.softmax(scores, dim=-1)
        at = drafted[..., None]
        ratio = (target[:, :LENGTH].gather(2, at) / draft.gather(2, at))[..., 0]
        accepted = (torch.rand_like(ratio) < ratio).to(torch.int64).cumprod(dim=1).sum(dim=1)
        residual = (target[session, accepted] - padded[session, accepted]).clamp_(min=0)
        return accepted, (residual / torch.empty_like(residual).exponential_()).argmax(dim=-1)

    return work


def by_vllm(step: Step, sampling: Sampling, *, block_rule: bool) -> Work:
    """vLLM's sampler of its GPU runner: a float32 copy, temperature, top-k and top-p, then its rejection kernels."""
    from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton
    from vllm.v1.worker.gpu.sample.gumbel import apply_temperature
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

    device, batch = step.draft.device, step.batch
    drafted = _drafted(step).to(torch.int32)
    sampled = torch.cat((torch.zeros_like(drafted[:, :1]), drafted), dim=1).flatten()
    rows = torch.arange(batch * ROWS, device=device)
    session = (rows // ROWS).to(torch.int32)
    local = (rows % ROWS).to(torch.int32)
    cumulative = torch.arange(batch + 1, device=device, dtype=torch.int32) * ROWS
    temperature = torch.full((batch,), sampling.temperature, device=device)
    seeds = torch.arange(batch, device=device)
    draft = step.draft.view(batch, LENGTH, -1)
    top_k = torch.full((len(rows),), sampling.top_k, device=device, dtype=torch.int32) if sampling.top_k else None
    top_p = torch.full((len(rows),), sampling.top_p, device=device) if sampling.top_p < 1 else None

    def work(logits: Tensor) -> object:
        scores = torch.empty_like(logits, dtype=torch.float32).copy_(logits)
        apply_temperature(scores, session, temperature)
        if top_k is not None or top_p is not None:
            scores = apply_top_k_top_p_triton(scores, top_k, top_p, has_topp_only_rows=top_k is None)
        return rejection_sample(
            scores, draft, sampled, cumulative, 100 + local.to(torch.int64), seeds.to(torch.int32), session, local,
            temperature, seeds, LENGTH, use_block_verification=block_rule,
        )  # fmt: skip

    return work


def by_flashspec(step: Step, sampling: Sampling) -> Work:
    """FlashSpec's step without a host copy: log-softmax of all rows, then its acceptance and residual."""
    if sampling.top_k or sampling.top_p < 1:
        raise ImportError("FlashSpec's step knows neither top-k nor top-p")
    from flashspec.sampling.rejection import rejection_step

    drafted = _drafted(step)
    shape = (step.batch, LENGTH, step.vocabulary_size)
    draft = torch.log_softmax(step.draft.float().view(shape) / sampling.temperature, dim=-1)

    def work(logits: Tensor) -> object:
        scores = logits.view(step.batch, ROWS, -1).float() / sampling.temperature
        return rejection_step(drafted, draft, torch.log_softmax(scores, dim=-1))

    return work
