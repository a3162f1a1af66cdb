"""Opens a trace of any kind."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from training.workloads.traces import alibaba, azure
from training.workloads.traces.alibaba import AlibabaBatchTrace
from training.workloads.traces.azure import AzureLlmTrace
from training.workloads.traces.errors import TraceError
from training.workloads.traces.rate import RequestRateTrace
from training.workloads.traces.text import TraceText, read_text
from training.workloads.traces.trace import Trace

_SAMPLED_LINES = 100


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Reads a trace, whose kind follows from the number of columns that most of its first lines have.

    Raises:
        TraceError: missing, empty or binary file; no known kind; more than half of the rows are bad.
    """
    text = read_text(Path(path))
    columns = _usual_column_count(text)
    if columns == len(alibaba.COLUMNS):
        return AlibabaBatchTrace.parse(text)
    if columns == len(azure.COLUMNS):
        return AzureLlmTrace.parse(text)
    if columns == 1:
        return RequestRateTrace.parse(text)
    raise TraceError(
        text.path,
        f"no known kind of trace: most of its first lines have {columns} columns separated by commas",
        f"give Alibaba batch tasks ({len(alibaba.COLUMNS)} columns), Azure LLM requests ({len(azure.COLUMNS)}) or "
        "requests per second (one number a line)",
        line=1,
        value=text.lines[0],
    )


def _usual_column_count(text: TraceText) -> int:
    sample = [line for line in text.lines[:_SAMPLED_LINES] if line.strip()] or text.lines
    return Counter(line.count(",") + 1 for line in sample).most_common(1)[0][0]
