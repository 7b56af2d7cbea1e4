"""The commands. Each reads and writes files, says what it did, and does the same again for the same seed."""

import click

from specmesh.training.making import collect_command, distil_command, narrow_command, pack_command, write_command
from specmesh.training.measuring import card_command, cost_command, evaluate_command, report_command
from specmesh.training.table_making import context_command, table_command


@click.group()
def main() -> None:
    """Distil draft models for a target, and measure them."""


for command in (
    collect_command,
    write_command,
    distil_command,
    narrow_command,
    pack_command,
    table_command,
    context_command,
    evaluate_command,
    cost_command,
    report_command,
    card_command,
):
    main.add_command(command)

if __name__ == "__main__":
    main()
