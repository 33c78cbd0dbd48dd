"""The report: reads files only.

Plots, the self-contained HTML page, the closing table.
"""

from typing import TYPE_CHECKING, Any

from etude.view.table import closing_table, plain

if TYPE_CHECKING:
    from etude.view.report import write_report

__all__ = ["closing_table", "plain", "write_report"]


def __getattr__(name: str) -> Any:
    if name == "write_report":  # drawing needs matplotlib, which the core does without
        from etude.view.report import write_report

        return write_report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
