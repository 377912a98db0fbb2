"""What was made, in words, tables and coloured tokens."""

import html
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hslib.dataset import Rejection, read_rows
from hslib.errors import JobError
from hslib.rows.chat import Chat
from hslib.rows.making import RowsManifest
from hslib.rows.row import Row

if TYPE_CHECKING:
    import pandas

_BOX = (
    "max-height:30em;overflow:auto;padding:8px;border:1px solid #797979;"
    "font:14px/1.9 monospace;white-space:pre-wrap;overflow-wrap:anywhere"
)
# dark on a pale ground of their own: the page behind them may be dark
_TRAINS = "background:#bfe0f5;color:#111;border-bottom:2px solid #0072B2"
_PROMPT = "background:#f1f1f1;color:#111;border-bottom:2px solid #f1f1f1"
_SPECIAL = ";font-weight:bold"
_MOST_TOKENS = 1500


def sentences(manifest: RowsManifest, max_rejected_share: float = 1.0) -> list[str]:
    """The verdict."""
    counts = manifest.counts
    if not counts.rows:
        lines = [f"NO ROWS: none of {counts.conversations:,} conversations became one."]
    else:
        lines = [
            f"ROWS MADE: {counts.rows:,} from {counts.conversations:,} conversations, "
            f"{counts.tokens:,} tokens, of which {counts.trained / counts.tokens:.0%} train. "
            f"The longest row has {counts.longest:,} tokens."
        ]
    if counts.single_turns:
        lines.append(
            f"In {counts.single_turns:,} of them one turn alone trains: this template renders "
            "earlier turns differently once others follow (it may drop their thinking): each row "
            "is what the server sees at that turn."
        )
    if manifest.answers and counts.rows:
        lines.append(_on_policy(manifest))
    if counts.rejected:
        total = sum(counts.rejected.values())
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in _by_number(manifest))
        too_many = counts.rejected_share > max_rejected_share
        limit = f", more than the {max_rejected_share:.0%} allowed" if too_many else ""
        lines.append(f"REJECTED: {total:,} ({counts.rejected_share:.1%}){limit}: {reasons}.")
    return lines


def _on_policy(manifest: RowsManifest) -> str:
    settings, found = manifest.recipe["regenerated"], manifest.answers
    early = ", ".join(f"{n:,} {reason}" for reason, n in sorted(found["ended_early"].items()))
    text = (
        "ON POLICY: the served model generated every answer that trains, as ids, at temperature "
        f"{settings['temperature']:g}."
    )
    if found["answers_cut"]:
        text += f" {found['answers_cut']:,} kept answers are cut: they reached max_answer_tokens."
    return text + (f" Conversations that end early: {early}." if early else "")


def is_good(manifest: RowsManifest, max_rejected_share: float) -> bool:
    """Whether rows were made, and not too many rejected."""
    return manifest.counts.rows > 0 and manifest.counts.rejected_share <= max_rejected_share


def require_good(manifest: RowsManifest, max_rejected_share: float) -> None:
    """Raises :class:`~hslib.errors.JobError` where :func:`is_good` says no."""
    if not is_good(manifest, max_rejected_share):
        raise JobError(
            sentences(manifest, max_rejected_share)[-1],
            fix="look at the rejected rows, correct the source or the parameters; or raise "
            "max_rejected_share",
        )


def facts(manifest: RowsManifest) -> dict[str, str]:
    """Numbers of what was made."""
    counts = manifest.counts
    return {
        "conversations": f"{counts.conversations:,}",
        "rows": f"{counts.rows:,}",
        "rows of one turn": f"{counts.single_turns:,}",
        "rejected": f"{sum(counts.rejected.values()):,}",
        "tokens": f"{counts.tokens:,}",
        "tokens that train": f"{counts.trained:,} ({counts.trained / max(1, counts.tokens):.1%})",
        "an answer ends with": " ".join(manifest.recipe["end_tokens"]),
    }


def _by_number(manifest: RowsManifest) -> list[tuple[str, int]]:
    return sorted(manifest.counts.rejected.items(), key=lambda item: (-item[1], item[0]))


def rejection_table(manifest: RowsManifest) -> "pandas.DataFrame":
    """``reason, rows, first row, evidence, cure``, most frequent first."""
    import pandas

    first = {line["reason"]: line for line in reversed(manifest.first_rejected)}
    lines = []
    for reason, number in _by_number(manifest):
        line = first.get(reason, {"index": "", "detail": "see the rejected rows' file", "fix": ""})
        lines.append((reason, number, line["index"], line["detail"], line["fix"]))
    return pandas.DataFrame(lines, columns=["reason", "rows", "first row", "evidence", "cure"])


def first_rows(out: str | Path, count: int) -> list[Row]:
    """The first rows of a file that was made; 0 = all."""
    return list(islice(_rows(out), count or None))


def _rows(out: str | Path) -> Iterator[Row]:
    if not Path(out).stat().st_size:  # no row was made
        return
    for _, line in read_rows(out, columns=None):
        assert not isinstance(line, Rejection)
        ids, mask = np.asarray(line["input_ids"], "<i4"), np.asarray(line["loss_mask"], np.uint8)
        yield Row(line["source_index"], line["id"], line["turn"], ids, mask)


def length_table(out: str | Path, count: int) -> "pandas.DataFrame":
    """``num_tokens, trained`` of the first rows."""
    import pandas

    found = [(len(r.input_ids), int(r.loss_mask.sum())) for r in islice(_rows(out), count or None)]
    return pandas.DataFrame(found, columns=["num_tokens", "trained"])


def row_text(chat: Chat, row: Row) -> str:
    """The row as text, what trains in «guillemets»."""
    parts = []
    for start, stop, trains in _runs(row.loss_mask):
        text = chat.tokenizer.decode(row.input_ids[start:stop].tolist())
        parts.append(f"«{text}»" if trains else str(text))
    return "".join(parts)


def row_html(chat: Chat, row: Row) -> str:
    """The row's tokens, coloured where they train; special tokens are bold.

    The styles are inline: JupyterLab drops a ``<style>`` from a notebook that is not trusted.
    """
    trained, total = int(row.loss_mask.sum()), len(row.input_ids)
    shown = min(total, _MOST_TOKENS)
    spans = []
    for ids, trains in _groups(chat, row, shown):
        text = html.escape(str(chat.tokenizer.decode(ids)).replace("\n", "↵\n"))
        is_special = any(number in chat.tokens.special_ids for number in ids)
        style = (_TRAINS if trains else _PROMPT) + _SPECIAL * is_special
        title = " ".join(map(str, ids))
        spans.append(f'<span style="{style};margin-right:2px" title="{title}">{text}</span>')
    more = f" <i>and {total - shown:,} more tokens</i>" if total > shown else ""
    legend = (
        f'row {html.escape(row.id)}: {total:,} tokens, <span style="{_TRAINS}">{trained:,} that '
        f'train</span>, <span style="{_PROMPT}">{total - trained:,} that do not</span>'
    )
    return f'<p style="color:inherit">{legend}</p><div style="{_BOX}">{"".join(spans)}{more}</div>'


def _runs(mask: np.ndarray) -> Iterator[tuple[int, int, bool]]:
    """(start, stop, trains) of equal neighbours."""
    edges = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(mask)]
    for start, stop in pairwise(edges):
        yield start, stop, bool(mask[start])


def _groups(chat: Chat, row: Row, shown: int) -> Iterator[tuple[Sequence[int], bool]]:
    """Tokens, those together that one character is made of."""
    for start, stop, trains in _runs(row.loss_mask[:shown]):
        group: list[int] = []
        for number in row.input_ids[start:stop].tolist():
            group.append(number)
            if "\ufffd" not in chat.tokenizer.decode(group) or len(group) > 8:
                yield group, trains
                group = []
        if group:
            yield group, trains
