"""Why does it not match? From logs, stores, datasets and tokenizers to a cause, with evidence.

::

    observations ─► alignment, counts ─► verdict (which sample holds what, and why)
    rows, vocabulary ─► tokens ─► causes ─► recipes (why two tokenisations differ)

Needs no server and no GPU; a server's tokenisation is one more source where there is one.
"""

from collections.abc import Sequence

from hslib.diagnosis.filing.observations import read_any
from hslib.diagnosis.filing.verdict import Diagnosis, diagnose_counts
from hslib.diagnosis.rows import load_rows, text_rows
from hslib.diagnosis.tokens.recipes import (
    Compared,
    compare_all,
    reference,
    sources,
    token_sentences,
)
from hslib.parameters import DiagnosisParameters

__all__ = [
    "Compared",
    "Diagnosis",
    "diagnose_counts",
    "metrics",
    "read_any",
    "reference",
    "run",
    "run_tokens",
    "token_sentences",
]


def run(parameters: DiagnosisParameters) -> Diagnosis:
    """Expected against got, with the dataset's rows where a dataset is named.

    Raises:
        HslibError: what is named can't be read.
    """
    rows = load_rows(parameters.dataset_path) if parameters.dataset_path else None
    return diagnose_counts(read_any(parameters.evidence_path), rows)


def run_tokens(parameters: DiagnosisParameters) -> list[Compared]:
    """Every two tokenisations that can be had of the dataset's rows; none when it holds no text.

    Raises:
        HslibError: no tokenizer, or a server that does not answer.
    """
    from hslib.diagnosis.tokens.tokenizers import ServerVocabulary, Vocabulary, load_vocabulary
    from hslib.server.client import ServerClient

    rows = list(text_rows(parameters.dataset_file, parameters.sample_limit))
    if not rows:
        return []
    folder, trusted = parameters.tokenizer_folder, parameters.trust_remote_code
    local = load_vocabulary(folder, trust_remote_code=trusted)
    vocabularies: list[Vocabulary] = [local]
    if parameters.slow_tokenizer:
        vocabularies.append(load_vocabulary(folder, slow=True, trust_remote_code=trusted))
    if not parameters.server_url:
        return compare_all(rows, sources(rows, vocabularies, local))
    with ServerClient(parameters.server_url, parameters.api_key, timeout_s=60.0) as client:
        vocabularies.append(ServerVocabulary(client, local))
        return compare_all(rows, sources(rows, vocabularies, local))


def metrics(found: Diagnosis, compared: Sequence[Compared]) -> dict[str, object]:
    """Numbers for ``metrics.json``."""
    main = reference(compared)
    return {
        "diagnosis": found.verdict.main,
        "samples_compared": found.verdict.num_compared,
        "samples_differing": found.verdict.num_mismatched,
        "samples_by_cause": {f.code: len(f.samples) for f in found.verdict.findings},
        "rows_tokenized": len(main.comparisons) if main else 0,
        "rows_with_other_ids": len(main.differing) if main else 0,
        "rows_by_cause": {code: len(rows) for code, rows in main.by_cause.items()} if main else {},
    }
