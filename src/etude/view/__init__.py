"""The report of a run: plots, a self-contained HTML page, and the table printed at the end.

Everything is made from the files of the run's folder.
"""

from typing import TYPE_CHECKING, Any

from etude.view.table import closing_table, last_trained, plain

if TYPE_CHECKING:
    from etude.view.report import write_report

__all__ = ["closing_table", "last_trained", "plain", "write_report"]


def __getattr__(name: str) -> Any:
    if name == "write_report":  # imported late: drawing needs matplotlib, which the core install lacks
        from etude.view.report import write_report

        return write_report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
