"""A diagnosis from its parameters, as notebook 01 and the terminal run it."""

from collections.abc import Sequence

from hslib.diagnosis.filing.observations import read_any
from hslib.diagnosis.filing.verdict import Diagnosis, diagnose_counts
from hslib.diagnosis.rows import load_rows, text_rows
from hslib.diagnosis.tokens.recipes import Compared, compare_all, reference, sources
from hslib.diagnosis.tokens.tokenizers import ServerVocabulary, load_vocabulary
from hslib.parameters import DiagnosisParameters
from hslib.server import ServerClient


def run(parameters: DiagnosisParameters) -> Diagnosis:
    """Expected against got, with the dataset's rows where a dataset is named.

    Raises:
        HslibError: what is named can't be read.
    """
    rows = load_rows(parameters.dataset_path) if parameters.dataset_path else None
    return diagnose_counts(read_any(parameters.evidence_path), rows)


def run_tokens(parameters: DiagnosisParameters) -> list[Compared]:
    """Compare all tokenisations of the dataset's rows; empty where the rows hold no text.

    Raises:
        HslibError: no tokenizer, or a server that does not answer.
    """
    rows = list(text_rows(parameters.dataset_source, parameters.sample_limit))
    if not rows:
        return []
    folder, trusted = parameters.tokenizer_folder, parameters.trust_remote_code
    local = load_vocabulary(folder, trust_remote_code=trusted)
    vocabularies = [local]
    if parameters.slow_tokenizer:
        vocabularies.append(load_vocabulary(folder, slow=True, trust_remote_code=trusted))
    if not parameters.server_url:
        return compare_all(rows, sources(rows, vocabularies, local))
    with ServerClient(parameters.server_url, parameters.api_key, timeout_s=60.0) as client:
        vocabularies.append(ServerVocabulary(local.tokenizer, "server", client=client))
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
