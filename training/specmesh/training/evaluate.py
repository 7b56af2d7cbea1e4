"""Evaluate: every arm on the held-out texts, the costs, and what both say of speed; results as one JSON file."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from specmesh.draft.lookup import LookupSettings
from specmesh.draft.ngram_file import load_table
from specmesh.model.distilled import find_draft, load_distilled, read_about
from specmesh.model.loading import load_model, resolve
from specmesh.training.arms import ContextArm, LookupArm, MixedArm, ServedArm, TableArm
from specmesh.training.cost import Costs, measure_costs
from specmesh.training.measure import Arm, Figures, measure
from specmesh.training.target import load_target
from specmesh.training.write import load_texts

LONGEST_TEXT = 512


@dataclass(frozen=True, slots=True)
class Subjects:
    """What is evaluated: distilled drafts by name or folder, tables by file; prompt lookup always."""

    target: str
    drafts: Sequence[str]
    tables: Sequence[Path]
    context: bool = True
    """Let drafts and tables learn from the session where they have weights for it."""


def evaluate(subjects: Subjects, held_out: Path, *, rows_per_cell: int) -> dict[str, dict[str, dict[float, Figures]]]:
    """Figures by arm, domain and temperature; everything in float32, as stored."""
    arms: dict[str, Arm] = {Path(name).name: served_arm(name, subjects) for name in subjects.drafts}
    arms["lookup"] = LookupArm(LookupSettings())
    for path in subjects.tables:
        table = load_table(path)
        arms[path.stem] = ContextArm(table) if table.context_weights and subjects.context else TableArm(table)
    target = load_target(resolve(subjects.target), device="cpu", dtype=torch.float32)
    return measure(target, arms, load_texts(held_out), rows_per_cell=rows_per_cell)


def served_arm(name: str, subjects: Subjects) -> Arm:
    """A distilled draft; with the session's own past where its package has weights for it, unless told otherwise."""
    arm = ServedArm(load_distilled(name, subjects.target, dtype="float32").model, LONGEST_TEXT)
    weights = read_about(find_draft(name)).get("context_weights", ())
    return MixedArm(arm, weights) if weights and subjects.context else arm


def evaluate_costs(subjects: Subjects, *, dtype: str, threads: int, repeats: int, clock: Callable[[], float]) -> Costs:
    """Costs in one number format, with so many threads."""
    torch.set_num_threads(threads)
    target = load_model(subjects.target, dtype=dtype).model
    drafts = {Path(name).name: load_distilled(name, subjects.target, dtype=dtype).model for name in subjects.drafts}
    return measure_costs(target, drafts, repeats=repeats, clock=clock)


def save_figures(figures: Mapping[str, Mapping[str, Mapping[float, Figures]]], path: Path) -> None:
    """Write figures as JSON: arm, domain, temperature."""
    content = {
        arm: {domain: {str(t): asdict(cell) for t, cell in cells.items()} for domain, cells in domains.items()}
        for arm, domains in figures.items()
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load_figures(path: Path) -> dict[str, dict[str, dict[float, Figures]]]:
    """Read what `save_figures` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return {
        arm: {
            domain: {float(t): Figures(cell["overlap"], tuple(cell["tokens_per_step"])) for t, cell in cells.items()}
            for domain, cells in domains.items()
        }
        for arm, domains in content.items()
    }


def save_costs(costs: Mapping[str, Costs], path: Path) -> None:
    """Write costs by setting (`bfloat16, 1 thread`) as JSON."""
    path.write_text(json.dumps({name: asdict(cost) for name, cost in costs.items()}, indent=1) + "\n", encoding="utf-8")


def load_costs(path: Path) -> dict[str, Costs]:
    """Read what `save_costs` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return {name: Costs(c["target"], tuple(c["verify"]), c["draft"]) for name, c in content.items()}
