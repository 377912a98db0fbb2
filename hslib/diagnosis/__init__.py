"""Why does it not match? From logs, stores, datasets and tokenizers to a cause, with evidence.

::

    ids/      a store's samples and the dataset's rows ─► what differs, with certainty
    filing/   observations ─► alignment, counts ─► verdict: which sample holds what, and why
    tokens/   rows, tokenizers ─► differences ─► causes ─► recipes: why tokenisations differ

Needs no server and no GPU; where there is a server, its tokenisation is compared too.
"""

from hslib.diagnosis.diagnose import is_good, metrics, run, run_tokens, sentences
from hslib.diagnosis.figures import plot_differences, plot_got, plot_lags
from hslib.diagnosis.filing.observations import read_any
from hslib.diagnosis.filing.verdict import Diagnosis, diagnose_counts
from hslib.diagnosis.tables import cause_table, pair_table, sample_table
from hslib.diagnosis.tokens.recipes import Compared, reference, token_sentences
from hslib.diagnosis.view import explorer

__all__ = [
    "cause_table",
    "Compared",
    "diagnose_counts",
    "Diagnosis",
    "explorer",
    "is_good",
    "metrics",
    "pair_table",
    "plot_differences",
    "plot_got",
    "plot_lags",
    "read_any",
    "reference",
    "run",
    "run_tokens",
    "sample_table",
    "sentences",
    "token_sentences",
]
