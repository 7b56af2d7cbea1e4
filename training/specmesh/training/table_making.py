"""The commands that make n-gram tables and let drafts learn from the session: table, context."""

from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from specmesh.draft.ngram_counts import CountSettings
from specmesh.draft.ngram_file import load_table, save_table
from specmesh.model.distilled import find_draft, load_distilled
from specmesh.model.loading import resolve
from specmesh.training.arms import ServedArm
from specmesh.training.context import fit_weights
from specmesh.training.corpus import DOMAINS
from specmesh.training.making import FILE, device_option, load, target_option
from specmesh.training.pack import set_context_weights
from specmesh.training.past import fit_past
from specmesh.training.tables import domain_table
from specmesh.training.write import joined, load_texts

texts_option = click.option("--texts", type=FILE, required=True, multiple=True, help="what `write` wrote; repeat")


@click.command(name="table")
@target_option
@texts_option
@click.option("--domain", required=True, type=click.Choice(DOMAINS))
@click.option("--out", type=FILE, required=True, help="the .npz to write")
@click.option("--order", type=int, default=3, show_default=True)
@click.option("--min-count", type=int, default=6, show_default=True, help="rarer contexts are left to shorter ones")
@click.option("--max-continuations", type=int, default=8, show_default=True)
def table_command(
    target: str, texts: tuple[Path, ...], domain: str, out: Path, order: int, min_count: int, max_continuations: int
) -> None:
    """Count an n-gram table of one domain from what the target wrote."""
    folder = resolve(target)
    written = joined([load_texts(path) for path in texts])
    settings = CountSettings(load_vocabulary_size(folder), order, max_continuations, min_count)
    save_table(out, domain_table(written, domain, folder, settings, name=out.stem))


def load_vocabulary_size(folder: Path) -> int:
    """Ids of the target's tokenizer."""
    from specmesh.model.tokenizer_files import read_tokenizer_files
    from specmesh.model.vocabulary import vocabulary_of

    return vocabulary_of(read_tokenizer_files(folder).tokenizer_json).size


@click.command(name="context")
@target_option
@texts_option
@click.option("--table", "tables", type=FILE, multiple=True, help="tables to give weights; repeat")
@click.option("--draft", "drafts", multiple=True, help="distilled drafts to give weights, by name or folder; repeat")
@click.option("--rows", type=int, default=96, show_default=True, help="texts to fit them on, of all domains")
@device_option
def context_command(
    target: str, texts: tuple[Path, ...], tables: tuple[Path, ...], drafts: tuple[str, ...], rows: int, device: str
) -> None:
    """Fit how much tables and drafts trust the session's own past, and write the weights into their files."""
    model, written = load(target, device), joined([load_texts(path) for path in texts])
    usable = np.flatnonzero(written.by_target.any(axis=1))
    chosen = usable[np.linspace(0, len(usable) - 1, min(rows, len(usable))).astype(int)]
    for path in tables:
        table = load_table(path)
        weights, overlap = fit_weights(model, table, written, rows=chosen)
        save_table(path, replace(table, context_weights=weights))
        click.echo(f"{path.name}: weights {weights}, overlap {overlap:.4f}")
    for name in drafts:
        folder = find_draft(name)
        arm = ServedArm(load_distilled(folder, target, dtype="float32").model, written.tokens.shape[1])
        weights, overlap, alone = fit_past(model, arm, written, rows=chosen)
        set_context_weights(folder, weights)
        click.echo(f"{folder.name}: weights {weights}, overlap {overlap:.4f}, alone {alone:.4f}")
