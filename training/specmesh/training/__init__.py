"""Distil draft models for a target, and measure them.

Five commands, in order (``python -m specmesh.training COMMAND --help``):

collect   gather text and write prompts; whole documents and topics are held out by hash before anything else
write     the target answers and continues them
distil    train the drafts towards the target's law: KL, then total variation; int8 weights in safetensors
pack      put the weights, a digest and a model card where the draft service finds them
evaluate  overlap, tokens per step and cost on the held-out prompts; the table in docs/distilling.md
"""
