"""The commands that measure drafts: evaluate, cost, report."""

import time
from pathlib import Path

import click
import torch

from specmesh.model.distilled import find_draft
from specmesh.training.corpus import load_corpus
from specmesh.training.evaluate import (
    Subjects,
    evaluate,
    evaluate_costs,
    load_costs,
    load_figures,
    save_costs,
    save_figures,
)
from specmesh.training.making import FILE, target_option
from specmesh.training.report import card, put_between_marks, tables

SHIPPED = ("code", "prose", "general")
drafts_option = click.option(
    "--draft", "drafts", multiple=True, default=SHIPPED, show_default=True, help="name or folder"
)


@click.command(name="evaluate")
@target_option
@drafts_option
@click.option("--table", "files", type=FILE, multiple=True, help="n-gram tables; repeat")
@click.option("--held-out", type=FILE, required=True, help="what `write` wrote from held-out prompts")
@click.option("--rows", type=int, default=24, show_default=True, help="texts per domain and temperature")
@click.option("--figures", type=FILE, required=True, help="the .json to write")
@click.option("--threads", type=int, default=2, show_default=True)
@click.option("--context/--no-context", default=True, show_default=True, help="let arms learn from the session")
def evaluate_command(
    target: str,
    drafts: tuple[str, ...],
    files: tuple[Path, ...],
    held_out: Path,
    rows: int,
    figures: Path,
    threads: int,
    context: bool,
) -> None:
    """Overlap and tokens per step of every arm, on the CPU in float32."""
    torch.set_num_threads(threads)
    save_figures(evaluate(Subjects(target, drafts, files, context), held_out, rows_per_cell=rows), figures)


@click.command(name="cost")
@target_option
@drafts_option
@click.option("--dtype", "dtypes", multiple=True, default=("bfloat16", "float32"), show_default=True)
@click.option("--threads", multiple=True, type=int, default=(1, 2), show_default=True)
@click.option("--repeats", type=int, default=60, show_default=True)
@click.option("--cpu-time", is_flag=True, help="count the process's own time: for busy machines, and one thread")
@click.option("--costs", type=FILE, required=True, help="the .json to write")
def cost_command(
    target: str,
    drafts: tuple[str, ...],
    dtypes: tuple[str, ...],
    threads: tuple[int, ...],
    repeats: int,
    cpu_time: bool,
    costs: Path,
) -> None:
    """Seconds of a draft token, of a target token, and of verifying a block."""
    clock = time.process_time if cpu_time else time.perf_counter
    measured = {
        f"{dtype}, {count} thread{'s' * (count > 1)}": evaluate_costs(
            Subjects(target, drafts, ()), dtype=dtype, threads=count, repeats=repeats, clock=clock
        )
        for dtype in dtypes
        for count in threads
    }
    save_costs(measured, costs)


@click.command(name="card")
@click.option("--figures", type=FILE, required=True)
@click.option("--corpus", type=FILE, required=True, help="for its list of sources")
@click.option("--draft", required=True, help="name or folder")
def card_command(figures: Path, corpus: Path, draft: str) -> None:
    """Write a draft's model card, README.md, into its folder."""
    text = card(draft, load_figures(figures), load_corpus(corpus).sources)
    (find_draft(draft) / "README.md").write_text(text, encoding="utf-8")


@click.command(name="report")
@click.option("--figures", type=FILE, required=True)
@click.option("--costs", type=FILE, required=True)
@click.option("--document", type=FILE, default=None, help="put the tables between its marks; else print them")
def report_command(figures: Path, costs: Path, document: Path | None) -> None:
    """The tables of docs/distilling.md."""
    content = tables(load_figures(figures), load_costs(costs))
    if document is None:
        click.echo(content)
    else:
        put_between_marks(document, content)
