"""The report of a job: what its storage tells of its checkpoints, starts and failures over time, with charts."""

from typing import TYPE_CHECKING

from dagster_ckpt.lazy_names import lazy_names

if TYPE_CHECKING:
    from dagster_ckpt.report.charts import draw_chart, moment
    from dagster_ckpt.report.figures import charts_of
    from dagster_ckpt.report.history import JobHistory, Trouble, read_history
    from dagster_ckpt.report.page import html_page
else:  # hidden from type checkers, which would take every name for one that is there
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["JobHistory", "Trouble", "charts_of", "draw_chart", "html_page", "moment", "read_history"]
