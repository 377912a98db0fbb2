"""All causes that a diagnosis can name, in words, each with its cure. Data, no logic."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["synchronisation", "server", "tokenizer", "dataset", "unknown"]
UNKNOWN_CAUSE = "unknown"
OTHER_DATASET = "other_dataset"
MOVED, REORDERED, GONE = "moved", "reordered", "gone"
OTHER_IDS, OTHER_ROW, PART = "other_ids", "other_row", "part"
OTHER_MASK = "other_mask"
DATASET_LIMIT, CUT, FIRST_TOKEN, LAST_TOKEN = "dataset_limit", "cut", "first_token", "last_token"


@dataclass(frozen=True)
class Cause:
    """``title`` completes "these samples differ because ..."; ``cure`` is an imperative."""

    code: str
    kind: Kind
    title: str
    cure: str


_RESYNC = (
    "delete the files of these samples (what is in them cannot be put right: longer dumps were "
    "cut) and extract them again with notebooks/03_extraction.ipynb, which clears, sends, scans "
    "and compares ids; never predict a counter"
)
_RESTART = "start the server with {}, delete these samples and extract them again"
_RETOKENIZE = (
    "tokenize the dataset again with the served model's own tokenizer and template, {}; states "
    "are right only for the ids that were sent"
)

_JOBS_FILE = "name the file that the job read (an index is a row's number there)"
_THESE_ROWS = (
    "; if the rows are meant to be these now, extract them into another store, or again with "
    "on_changed_rows = 'redo': stored states are of the stored ids alone"
)

_SYNCHRONISATION: tuple[tuple[str, str, str], ...] = (
    ("shift", "the stream of dumps is shifted: they hold other samples' states", _RESYNC),
    ("foreign", "another client's short forward (warm-up, health check) was taken for a sample's",
     "delete these samples and extract them again; keep other clients off the server"),
    ("data_parallel", "several replicas number their dumps, each by its own counter", _RESYNC),
    ("every_dump_twice", "each dump appears several times: more than one rank writes",
     "let one rank write (the kit's plugin does), delete these samples and extract them again"),
    ("permutation", "they hold the dataset's rows in another order", _RESYNC),
    ("repeated_dump", "one old dump was read again and again", _RESYNC),
)  # fmt: skip
_SERVER = (
    ("prefix_cache", "a cached prefix never passed the model, so its rows are missing",
     _RESTART.format("--disable-radix-cache")),
    ("limit", "a context or chunk limit cut everything longer",
     _RESTART.format("a larger --context-length, without --allow-auto-truncate")),
    ("chunk", "a chunk of a chunked prefill was taken for the whole",
     _RESTART.format("--chunked-prefill-size -1, or a dump that joins chunks (the kit's does)")),
    ("decode_step", "decode steps were dumped instead of the prefill",
     "request max_new_tokens = 0 and dump prefills only; extract these samples again"),
    ("retraction", "rows came twice: the request was retracted and prefilled again",
     _RESTART.format("fewer requests in flight or more memory for the KV cache")),
)  # fmt: skip
_TOKENIZER = (
    ("bos", "the beginning-of-sequence token is missing, or appears twice",
     _RETOKENIZE.format("add_special_tokens as the server has it")),
    ("eos", "the end-of-sequence token is missing or additional",
     _RETOKENIZE.format("the end token as the server has it")),
    ("template_twice", "text that had been through the chat template went through it again",
     _RETOKENIZE.format("rendering messages once, and never text that is already rendered")),
    ("generation_prompt", "only one of the two ends with the opening of the next assistant turn",
     _RETOKENIZE.format("add_generation_prompt False for whole conversations")),
    ("thinking", "thinking blocks of earlier turns were removed by the template",
     _RETOKENIZE.format("the thinking setting the drafter will meet")),
    ("stripped", "white space at the edges of messages was stripped",
     _RETOKENIZE.format("messages unchanged")),
    ("special_text", "text that spells a special token was parsed as one, or was not",
     _RETOKENIZE.format("user text with special tokens not parsed")),
    ("special_ids", "special tokens have other ids; the counts agree",
     _RETOKENIZE.format("from the served checkpoint's folder, not from a conversion")),
    ("join_merge", "tokens were merged across the join of prompt and response",
     _RETOKENIZE.format("prompt and response either always apart or always together")),
    ("newlines", "line ends differ (CRLF against LF)", _RETOKENIZE.format("with one line end")),
    ("unicode", "the text was normalised (NFC, NFKC) in one of the two",
     _RETOKENIZE.format("normalised once, before everything")),
    ("byte_fallback", "characters outside the vocabulary became bytes in only one of the two",
     _RETOKENIZE.format("byte fallback as the server has it")),
    ("truncated", "one of the two was cut at a limit",
     "raise max_length, or split the row; rows must never be cut"),
    ("date", "the template writes today's date", _RETOKENIZE.format("with the date fixed")),
    ("template_text", "the template inserts text of its own (a default system prompt, say)",
     _RETOKENIZE.format("the system message written out in every row")),
    ("segmentation", "the same vocabulary splits the same text elsewhere (fast against slow "
     "tokenizer, another splitting expression)", _RETOKENIZE.format("the same implementation")),
    ("other_vocabulary", "the ids are of another vocabulary",
     _RETOKENIZE.format("and with no other")),
    ("frame", "most differ by the same few tokens: special tokens or template",
     "compare ids, which show the tokens: name the dataset and the tokenizer or the server"),
)  # fmt: skip
_DATASET = (
    (OTHER_DATASET, "this log is not of this dataset",
     "name the file that the job read; the store's manifest and the job's log name it"),
    ("row_order", "the ids are those of another row: the rows are in another order",
     "use the file that the job used"),
    (MOVED, "the dataset has these rows at other indices, all at the same distance",
     f"{_JOBS_FILE}, or undo what was put before the rows or taken out"),
    (REORDERED, "the dataset has these rows in another order",
     f"{_JOBS_FILE}, or sort the rows as they were"),
    (GONE, "the dataset has no such row", _JOBS_FILE + _THESE_ROWS),
    (OTHER_IDS, "the ids differ at some positions",
     f"find out what made the ids anew, and {_JOBS_FILE}{_THESE_ROWS}"),
    (OTHER_ROW, "the two have less than half of their ids in common: another text, or another "
     "tokenizer", _JOBS_FILE + _THESE_ROWS),
    (OTHER_MASK, "the ids agree, but other tokens train",
     "give mask_column as the job had it; else find out what changed the mask, or extract the rows "
     "again with on_changed_rows = 'redo'; a job of before December 2026 read loss_mask alone"),
    (DATASET_LIMIT, "the dataset's rows were cut at one limit",
     f"tokenize the dataset without max_length (too long rows are rejected, never cut), or "
     f"{_JOBS_FILE}"),
    (CUT, "one of the two is the beginning of the other",
     f"find out what cut it, and {_JOBS_FILE}{_THESE_ROWS}"),
    (PART, "one of the two is a part of the other",
     f"find out what cut it (a limit on the left, a window), and {_JOBS_FILE}{_THESE_ROWS}"),
    (FIRST_TOKEN, "the first token is missing in one of the two",
     "look for add_special_tokens and for a slice [1:] where the ids were made, and make them "
     "again; states are right only for the ids that were sent"),
    (LAST_TOKEN, "the last token is missing in one of the two",
     "look for an end token that is added, and for a slice [:-1], where the ids were made, and "
     "make them again; states are right only for the ids that were sent"),
)  # fmt: skip


def _causes(kind: Kind, rows: Iterable[tuple[str, str, str]]) -> dict[str, Cause]:
    return {code: Cause(code, kind, title, cure) for code, title, cure in rows}


CATALOGUE: dict[str, Cause] = {
    **_causes("synchronisation", _SYNCHRONISATION),
    **_causes("server", _SERVER),
    **_causes("tokenizer", _TOKENIZER),
    **_causes("dataset", _DATASET),
    UNKNOWN_CAUSE: Cause(
        UNKNOWN_CAUSE,
        "unknown",
        "nothing that this kit knows explains them",
        "look at the examples; name the dataset, the tokenizer and the server, so that ids "
        "can be compared instead of lengths",
    ),
}
