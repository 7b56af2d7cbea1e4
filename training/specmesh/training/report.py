"""The table in the docs and the model cards, from the figures and costs that `evaluate` and `cost` left."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specmesh.model.distilled import find_draft, read_about
from specmesh.training.corpus import DOMAINS
from specmesh.training.cost import Costs
from specmesh.training.measure import TEMPERATURES, Figures

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

ByCell = Mapping[str, Mapping[str, Mapping[float, Figures]]]


def tables(figures: ByCell, costs: Mapping[str, Costs]) -> str:
    """All tables, in Markdown."""
    parts = ["### Overlap with the target\n", *_overlaps(figures), "\n### Tokens per step\n", *_steps(figures)]
    parts += ["\n### Cost of a draft token, in target tokens\n", *_costs(costs)]
    for setting, cost in costs.items():
        parts += [f"\n### Speed at the best block length ({setting})\n", *_speeds(figures, cost)]
    return "\n".join(parts) + "\n"


def put_between_marks(document: Path, content: str) -> None:
    """Replace what is between the marks in a document. Raises ValueError where there are none."""
    before, found, rest = document.read_text(encoding="utf-8").partition(BEGIN)
    _, ends, after = rest.partition(END)
    if not (found and ends):
        raise ValueError(f"{document}: no place for the figures")
    document.write_text(f"{before}{BEGIN}\n\n{content}\n{END}{after}", encoding="utf-8")


def best_arms(figures: ByCell, cost: Costs) -> dict[tuple[str, float], list[tuple[float, int, str]]]:
    """By domain and temperature: (speed, block length, arm), the fastest first. Arms without a model cost nothing."""
    drafts = {**dict.fromkeys(figures, 0.0), **cost.draft}
    priced = Costs(cost.target, cost.verify, drafts)
    cells = {}
    for domain in DOMAINS:
        for temperature in TEMPERATURES:
            speeds = [
                (*priced.speed(arm, by_domain[domain][temperature].tokens_per_step), arm)
                for arm, by_domain in figures.items()
                if temperature in by_domain[domain]
            ]
            if speeds:
                cells[domain, temperature] = sorted(speeds, reverse=True)
    return cells


def card(name: str, figures: ByCell, sources: Sequence[Mapping[str, str]]) -> str:
    """A draft's model card."""
    about = read_about(find_draft(name))
    layers, domains = ", ".join(map(str, about["layers"])), ", ".join(about["domains"])
    lines = [
        f"# {about['name']}: a draft for {about['target']}\n",
        f"Layers {layers} of the target, the target's own embedding (not stored) and an output head",
        f"on {about['head']:,} tokens; int8 with a scale per row. Trained on {domains}. It proposes; what is",
        "emitted follows the target's law whatever it proposes.\n",
        "## Data\n",
        "Mostly text that the target itself wrote: answers to prompts made from templates, WordNet nouns (WordNet 3.0",
        "licence) and pieces of the documents below, and continuations of those documents. A tenth (prose, JSON) or a",
        "fifth (code) of the rows is the documents' own text:\n",
        *(f"- {s['name']} ({s['licence']})" for s in sources if s["domain"] in about["domains"]),
        "\nDocuments, topics and tasks were split by a hash of their names before anything else; the figures are of",
        "held-out ones.\n",
        "## Recipe\n",
        f"{about['recipe']} See `docs/distilling.md` for the commands.\n",
        "## Measured\n",
        "Overlap with the target's law on held-out prompts (temperature 0: share of equal argmaxes):\n",
        *_overlap_by_domain(figures[about["name"]]),
        "\n## Licence\n",
        "Apache-2.0, as the target's (SmolLM2-135M-Instruct, Hugging Face). WordNet 3.0 © 2006 Princeton University.",
    ]
    return "\n".join(lines) + "\n"


def _rows_of_overlap(figures: ByCell) -> Iterator[str]:
    yield "| arm | " + " | ".join(f"{domain} {t:g}" for domain in DOMAINS for t in TEMPERATURES) + " |"
    yield "|---" * (1 + len(DOMAINS) * len(TEMPERATURES)) + "|"
    for arm, domains in figures.items():
        cells = (_overlap(domains[domain], t) for domain in DOMAINS for t in TEMPERATURES)
        yield f"| {arm} | " + " | ".join(cells) + " |"


def _overlap(cells: Mapping[float, Figures], temperature: float) -> str:
    return f"{cells[temperature].overlap:.3f}" if temperature in cells else "no texts"


def _overlap_by_domain(figures: Mapping[str, Mapping[float, Figures]]) -> Iterator[str]:
    yield "| domain | " + " | ".join(f"temperature {t:g}" for t in TEMPERATURES) + " |"
    yield "|---" * (1 + len(TEMPERATURES)) + "|"
    for domain, cells in figures.items():
        yield f"| {domain} | " + " | ".join(_overlap(cells, t) for t in TEMPERATURES) + " |"


def _overlaps(figures: ByCell) -> Iterator[str]:
    yield "Columns: domain and temperature.\n"
    yield from _rows_of_overlap(figures)


def _steps(figures: ByCell) -> Iterator[str]:
    yield "| arm | domain | temperature | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 |"
    yield "|---" * 11 + "|"
    for arm, domains in figures.items():
        for domain, cells in domains.items():
            for temperature, cell in cells.items():
                steps = " | ".join(f"{tokens:.2f}" for tokens in cell.tokens_per_step)
                yield f"| {arm} | {domain} | {temperature:g} | {steps} |"


def _costs(costs: Mapping[str, Costs]) -> Iterator[str]:
    names = list(next(iter(costs.values())).draft)
    yield "| setting | target token, ms | verifying 8 drafted | " + " | ".join(names) + " |"
    yield "|---" * (3 + len(names)) + "|"
    for setting, cost in costs.items():
        shares = " | ".join(f"{cost.share(name):.3f}" for name in names)
        yield f"| {setting} | {cost.target * 1e3:.1f} | {cost.verify[-1] / cost.target:.2f} | {shares} |"


def _speeds(figures: ByCell, cost: Costs) -> Iterator[str]:
    yield "Tokens in the time of one target token; in brackets the block length.\n"
    yield "| domain | temperature | fastest | ahead of the next by | all |"
    yield "|---|---|---|---|---|"
    for (domain, temperature), ranked in best_arms(figures, cost).items():
        lead = f"{ranked[0][0] / ranked[1][0] - 1:.1%}" if len(ranked) > 1 else "no other"
        everyone = ", ".join(f"{arm} {speed:.2f} ({length})" for speed, length, arm in ranked)
        yield f"| {domain} | {temperature:g} | {ranked[0][2]} | {lead} | {everyone} |"
