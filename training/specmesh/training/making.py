"""The commands that make drafts: collect, write, distil, pack."""

import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from specmesh.model.distilled import dequantise, find_draft
from specmesh.model.loading import resolve
from specmesh.training.arms import TrainedArm
from specmesh.training.batches import Batches, BatchSettings
from specmesh.training.collect import CollectSettings, collect
from specmesh.training.corpus import DOMAINS, load_corpus, save_corpus
from specmesh.training.distil import DistilSettings, DraftPlan, distil, make_drafts
from specmesh.training.draft_model import DraftModel
from specmesh.training.measure import Arm, measure
from specmesh.training.narrow import narrowed
from specmesh.training.pack import packed, save_weights, write_package
from specmesh.training.target import load_target
from specmesh.training.write import (
    SHARES,
    WriteSettings,
    joined,
    load_texts,
    save_texts,
    write_held_out_texts,
    write_training_texts,
)

REAL_SHARES = {"prose": 0.1, "code": 0.2, "json": 0.1}
"""Of a batch's rows, by domain: documents instead of what the target wrote."""
LONG_EVERY = 8
"""One batch in so many is documents in rows four times as long."""
TEMPERATURES = (0.0, 0.4, 0.7, 0.7, 1.0, 1.0, 1.0)
WARMUP_STEPS = 200
FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
target_option = click.option("--target", required=True, help="`demo`, a model's folder, or a .gguf file")
corpus_option = click.option("--corpus", type=FILE, required=True, help="what `collect` wrote")
seed_option = click.option("--seed", type=int, default=0, show_default=True)
device_option = click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda")


def load(target: str, device: str) -> PreTrainedModel:
    """The target on a device: bfloat16 on a GPU, float32 on a CPU."""
    on = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    return load_target(resolve(target), device=on, dtype=torch.bfloat16 if on == "cuda" else torch.float32)


@click.command(name="collect")
@target_option
@click.option("--texts", type=FOLDER, required=True, help="where documentation packages were unpacked")
@click.option("--wordnet", type=FOLDER, required=True, help="folder with WordNet's index.noun")
@click.option("--corpus", type=FILE, required=True, help="the .npz to write")
@click.option("--scale", type=float, default=1.0, show_default=True, help="share of the full amount")
@seed_option
def collect_command(target: str, texts: Path, wordnet: Path, corpus: Path, scale: float, seed: int) -> None:
    """Gather documents, write prompts, hold some out."""
    places = {"stdlib": sysconfig.get_path("stdlib"), "site": sysconfig.get_path("purelib"), "texts": str(texts)}
    documents = {"prose": int(6_500_000 * scale), "code": int(8_500_000 * scale)}
    prompts = {"prose": 45_000, "code": 30_000, "json": 10_000, "copying": 9_000}
    counts = {domain: max(20, int(count * scale)) for domain, count in prompts.items()}
    settings = CollectSettings(documents, counts, max(20, int(400 * scale)), seed)
    save_corpus(collect(resolve(target), places, wordnet, settings), corpus)


@click.command(name="write")
@target_option
@corpus_option
@click.option("--texts", type=FILE, required=True, help="the .npz to write for training")
@click.option("--held-out", type=FILE, required=True, help="the .npz to write for evaluation")
@click.option("--rows", type=int, default=160_000, show_default=True, help="rows to write; a batch is never cut")
@click.option("--batch-rows", type=int, default=4096, show_default=True)
@click.option("--length", type=int, default=384, show_default=True, help="tokens of a row")
@click.option("--domain", "domains", multiple=True, default=DOMAINS, show_default=True, help="what to write; repeat")
@click.option("--held-out-rows", type=int, default=96, show_default=True, help="held-out prompts per domain")
@click.option("--max-seconds", type=float, default=3600.0, show_default=True)
@device_option
@seed_option
def write_command(
    target: str,
    corpus: Path,
    texts: Path,
    held_out: Path,
    rows: int,
    batch_rows: int,
    length: int,
    domains: tuple[str, ...],
    held_out_rows: int,
    max_seconds: float,
    device: str,
    seed: int,
) -> None:
    """Let the target write: training texts, and answers to the held-out prompts."""
    model, collected = load(target, device), load_corpus(corpus)
    held = write_held_out_texts(
        model, collected, per_domain=held_out_rows, length=length, temperatures=(0.0, 0.7, 1.0), seed=seed + 1
    )
    save_texts(held, held_out)
    settings = WriteSettings(domains, rows, batch_rows, length, TEMPERATURES, seed, max_seconds)
    save_texts(write_training_texts(model, collected, settings, click.echo), texts)


@click.command(name="distil")
@target_option
@corpus_option
@click.option("--texts", type=FILE, required=True, multiple=True, help="what `write` wrote; repeat")
@click.option("--out", type=FOLDER, required=True, help="for NAME.safetensors, saved several times during training")
@click.option(
    "--draft",
    "drafts",
    multiple=True,
    default=("code:code:2:5120:prose", "prose:prose:2:6144:code", "general:general:4"),
    show_default=True,
    help="NAME:DOMAINS:LAYERS[:HEAD[:AGAINST]]; domains joined by '+', or 'general' for all. Repeat.",
)
@click.option("--held-out", type=FILE, default=None, help="held-out texts to measure the drafts on at the end")
@click.option("--layers", type=int, default=None, help="in place of each draft's own")
@click.option("--head", type=int, default=8192, show_default=True, help="tokens a draft can say unless it says")
@click.option("--rank", type=int, default=64, show_default=True, help="of the correction of the output head")
@click.option("--rows", type=int, default=96, show_default=True, help="rows of a batch")
@click.option("--learning-rate", type=float, default=1.5e-3, show_default=True)
@click.option("--max-seconds", type=float, default=480.0, show_default=True)
@click.option("--max-steps", type=int, default=1_000_000, show_default=True)
@click.option("--compile/--no-compile", "compiled", default=False, show_default=True)
@click.option("--go-on", is_flag=True, help="from the packaged drafts of these names, in place of the target's layers")
@device_option
@seed_option
def distil_command(
    target: str,
    corpus: Path,
    texts: tuple[Path, ...],
    out: Path,
    drafts: tuple[str, ...],
    held_out: Path | None,
    layers: int | None,
    head: int,
    rank: int,
    rows: int,
    learning_rate: float,
    max_seconds: float,
    max_steps: int,
    compiled: bool,
    go_on: bool,
    device: str,
    seed: int,
) -> None:
    """Train drafts; leaves int8 weights."""
    model, collected, written = load(target, device), load_corpus(corpus), joined([load_texts(p) for p in texts])
    plans = [plan(draft, layers, head, rank) for draft in drafts]
    models = packaged_drafts(model, plans) if go_on else make_drafts(model, plans, written, collected)
    shares = {domain: share for domain, share in SHARES.items() if any(domain in each.domains for each in plans)}
    batches = Batches(written, collected, BatchSettings(rows, shares, REAL_SHARES, LONG_EVERY, seed), model.device)
    variation = (0.0, 0.3) if go_on else (0.35, 0.65)
    settings = DistilSettings(max_seconds, max_steps, learning_rate, WARMUP_STEPS, *variation, (0.6,), compiled, seed)
    out.mkdir(parents=True, exist_ok=True)

    def save() -> None:
        for name, draft in models.items():
            save_weights(draft.weights(), out / f"{name}.safetensors")

    distil(model, models, plans, batches, settings, save=save, report=click.echo)
    if held_out is not None:
        click.echo(measured(model, models, held_out))


def packaged_drafts(target: PreTrainedModel, plans: Sequence[DraftPlan]) -> dict[str, DraftModel]:
    """Drafts on the target's device as their packages have them: layers, head and the tokens they can say."""
    drafts = {}
    for each in plans:
        tensors = dequantise(load_file(find_draft(each.name) / "model.safetensors"))
        rank = len(tensors["head.basis"])
        draft = DraftModel(target, each.layers, tensors["token_ids"].to(target.device), rank=rank).to(target.device)
        drafts[each.name] = draft.with_weights(tensors)
    return drafts


def plan(described: str, layers: int | None, head: int, rank: int) -> DraftPlan:
    """NAME:DOMAINS:LAYERS[:HEAD[:AGAINST]]; `layers`, where given, wins over LAYERS."""
    name, domains, own_layers, *more = described.split(":")
    own = DOMAINS if domains == "general" else tuple(domains.split("+"))
    against = tuple(more[1].split("+")) if len(more) > 1 else ()
    depth = int(own_layers) if layers is None else layers
    return DraftPlan(name, own, tuple(range(depth)), int(more[0]) if more else head, rank, against)


def measured(target: PreTrainedModel, drafts: Mapping[str, DraftModel], held_out: Path) -> str:
    """Overlap of the drafts as trained and as stored, one line for each domain and temperature."""
    torch.compiler.set_stance("force_eager")  # texts have many lengths
    arms: dict[str, Arm] = {}
    for name, draft in drafts.items():
        arms[name] = TrainedArm(draft)
        arms[f"{name} int8"] = TrainedArm(draft.with_weights(dequantise(packed(draft.weights()))))
    figures = measure(target, arms, load_texts(held_out), rows_per_cell=32)
    return "\n".join(
        f"{name} {domain} {temperature} {cell.overlap:.4f} {' '.join(f'{t:.2f}' for t in cell.tokens_per_step)}"
        for name, domains in figures.items()
        for domain, cells in domains.items()
        for temperature, cell in cells.items()
    )


@click.command(name="pack")
@target_option
@click.option("--weights", type=FILE, required=True, help="NAME.safetensors, as `distil` left it")
@click.option("--layers", required=True, help="the target's layers it began with: '0,1'")
@click.option("--domains", required=True, help="joined by '+'")
@click.option("--recipe", default="", help="a sentence for the model card")
@click.option("--out", type=FOLDER, required=True, help="the draft's folder; its name is the draft's")
def pack_command(target: str, weights: Path, layers: str, domains: str, recipe: str, out: Path) -> None:
    """Make a folder that the draft service loads as `distilled:FOLDER`."""
    folder = resolve(target)
    about = {
        "name": out.name,
        "target": target,
        "layers": [int(layer) for layer in layers.split(",")],
        "domains": domains.split("+"),
        "recipe": recipe,
    }
    write_package(out, weights, folder, about)


@click.command(name="narrow")
@corpus_option
@click.option("--texts", type=FILE, required=True, multiple=True, help="what `write` wrote; repeat")
@click.option("--weights", type=FILE, required=True, help="NAME.safetensors, as `distil` left it")
@click.option("--domains", required=True, help="the draft's own, joined by '+'")
@click.option("--against", required=True, help="domains to be worse in, joined by '+'")
@click.option("--tokens", type=int, required=True, help="how many its head shall do without")
@click.option("--out", type=FILE, required=True, help="the .safetensors to write")
def narrow_command(
    corpus: Path, texts: tuple[Path, ...], weights: Path, domains: str, against: str, tokens: int, out: Path
) -> None:
    """Take from a draft's head what another domain says far more often than its own."""
    written = joined([load_texts(path) for path in texts])
    own, other = domains.split("+"), against.split("+")
    save_file(narrowed(load_file(weights), written, load_corpus(corpus), own=own, against=other, count=tokens), out)
