"""Narrow a draft's head: it unlearns to say what another domain says far more often than its own.

A specialist that is nearly as good elsewhere as the specialist there leaves a policy little to choose. Nothing is
trained: the head's rows of the tokens go, and its law is what is left, made to sum to 1.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from specmesh.training.corpus import Corpus, IntArray
from specmesh.training.distil import token_shares
from specmesh.training.write import Texts

LEAST_SHARE = 2e-6
"""Added to a token's share in the own domain: what was seen once or never is not told apart."""


def narrowed(
    stored: Mapping[str, Tensor],
    texts: Texts,
    corpus: Corpus,
    *,
    own: Sequence[str],
    against: Sequence[str],
    count: int,
) -> dict[str, Tensor]:
    """The stored tensors of a draft without the `count` tokens that `against` says most for each time in `own`."""
    token_ids = stored["token_ids"].long()
    seen: list[IntArray] = [token_ids.numpy(), texts.tokens]
    seen += [documents.tokens for documents in corpus.training.documents.values()]
    size = 1 + max(int(tokens.max()) for tokens in seen)
    shares = [token_shares(domains, texts, corpus, size)[token_ids] for domains in (own, against)]
    ratio = shares[1] / (shares[0] + LEAST_SHARE)
    ratio[torch.isin(token_ids, torch.tensor(corpus.end_ids))] = -1
    keep = torch.ones(len(token_ids), dtype=torch.bool)
    keep[ratio.topk(count).indices] = False
    of_head = ("token_ids", "head.rows", "head.rows.scale")
    return {name: tensor[keep].contiguous() if name in of_head else tensor for name, tensor in stored.items()}
