"""The table of a world model's gates."""

from rich.table import Table

from worldrl.core.storage.log import console
from worldrl.evaluation.world_model.gates import Gate


def show_gates(gates: list[Gate], title: str) -> None:
    """Print the gates as a table."""
    table = Table(title=title)
    for heading in ("gate", "value", "needs", "", "meaning"):
        table.add_column(heading)
    for gate in gates:
        verdict = "passed" if gate.passed else "[bold]failed[/bold]"
        table.add_row(gate.name, str(gate), f"{gate.threshold:.3g}", verdict, gate.meaning)
    console().print(table)
