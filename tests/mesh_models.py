"""A tiny model with a tokenizer and a chat template, as a folder that services load."""

import json
from pathlib import Path

import torch
from tiny_tokenizers import byte_level_bpe
from transformers import LlamaConfig, LlamaForCausalLM

TEMPLATE = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}[assistant]"


def write_model(folder: Path, *, layers: int = 2, seed: int = 3) -> LlamaForCausalLM:
    """Write it; the model itself, for comparison."""
    tokenizer = byte_level_bpe()
    eos = tokenizer.token_to_id("</s>")
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=eos,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    settings = {"eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return model
