"""A diagnosis from its parameters, as notebook 01 and the terminal run it."""

import functools
from collections.abc import Sequence

from hslib.dataset import Dataset, Limits
from hslib.diagnosis.filing.observations import observe, read_any
from hslib.diagnosis.filing.verdict import Diagnosis, diagnose_counts
from hslib.diagnosis.given import Given, what_is_given
from hslib.diagnosis.ids.change import Text
from hslib.diagnosis.ids.stored import compare_stored, rejected_rows
from hslib.diagnosis.rows import load_rows, text_rows
from hslib.diagnosis.tokens.recipes import (
    Compared,
    compare_all,
    reference,
    sources,
    token_sentences,
)
from hslib.diagnosis.tokens.tokenizers import ServerVocabulary, Vocabulary, load_vocabulary
from hslib.errors import DatasetError, HslibError
from hslib.parameters import DiagnosisParameters
from hslib.server import ServerClient

_ANY = Limits(vocab_size=2**31, max_tokens=2**31)


def run(parameters: DiagnosisParameters) -> Diagnosis:
    """Expected against got, with the dataset's rows where they are known.

    Stored ids are compared with the dataset's before lengths are: what they show is certain.

    Raises:
        HslibError: what is named can't be read.
    """
    given = what_is_given(parameters)
    if not given.evidence:
        return diagnose_counts(observe([], [], [], "nothing"))
    observed = read_any(given.evidence)
    if not given.dataset or parameters.is_demo:  # the demo's log is of another dataset
        return diagnose_counts(observed)
    rows = load_rows(given.dataset)
    if not (rows.lengths > 0).any():
        raise DatasetError(
            "no row of the dataset has input_ids: stored samples can't be compared with it",
            fix="name the rows that were extracted; conversations are made into rows by "
            f"'python -m hslib rows {given.dataset} ROWS.jsonl --model MODEL'",
            dataset=given.dataset,
        )
    dataset = Dataset(given.dataset, _ANY, mask_column=parameters.mask_column)
    ids = compare_stored(given.evidence, dataset, rows, _text_of(parameters, given))
    if ids is None:
        return diagnose_counts(observed, rows)
    found = diagnose_counts(observed, None if ids.findings else rows)
    return found.with_ids(ids.headline, ids.findings, rows.lengths)


def _text_of(parameters: DiagnosisParameters, given: Given) -> Text:
    """An id's text; "" where there is no tokenizer. It is loaded when it is first needed."""

    @functools.cache
    def vocabulary() -> Vocabulary | None:
        try:
            return load_vocabulary(given.tokenizer, trust_remote_code=parameters.trust_remote_code)
        except HslibError:
            return None  # said where tokens are made again

    def text(number: int) -> str:
        known = vocabulary() if given.tokenizer else None
        return known.decode([number]) if known is not None else ""

    return text


def run_tokens(parameters: DiagnosisParameters) -> list[Compared]:
    """Compare all tokenisations of the dataset's rows.

    Empty where dataset or tokenizer are not known (:func:`skipped` says so), or where the rows
    hold no text. A row that can't be rendered is left out, with the reason.

    Raises:
        HslibError: no tokenizer, or a server that does not answer.
    """
    given = what_is_given(parameters)
    if not given.dataset or not given.tokenizer:
        return []
    try:
        rows, left_out = text_rows(given.dataset, parameters.sample_limit)
        local = load_vocabulary(given.tokenizer, trust_remote_code=parameters.trust_remote_code)
    except HslibError:
        if parameters.dataset_path and parameters.tokenizer_path:
            raise
        return []  # named by the store's manifest, and not to be read here: said in the verdict
    rejected = rejected_rows(given.evidence, given.dataset)  # the job has told of them
    rows = [row for row in rows if row.index not in rejected]
    if not rows and not left_out:
        return []
    folder, trusted = given.tokenizer, parameters.trust_remote_code
    vocabularies = [local]
    if parameters.slow_tokenizer:
        vocabularies.append(load_vocabulary(folder, slow=True, trust_remote_code=trusted))
    if not parameters.server_url:
        return compare_all(rows, sources(rows, vocabularies, local), left_out)
    with ServerClient(parameters.server_url, parameters.api_key, timeout_s=60.0) as client:
        vocabularies.append(ServerVocabulary(local.tokenizer, "server", client=client))
        return compare_all(rows, sources(rows, vocabularies, local), left_out)


def sentences(
    parameters: DiagnosisParameters, found: Diagnosis, compared: Sequence[Compared]
) -> list[str]:
    """The whole verdict in words, with what was left out."""
    given = what_is_given(parameters)
    lines = found.verdict.sentences() if given.evidence else []
    if given.dataset and given.tokenizer:
        lines += ["", *(token_sentences(compared) if compared else [_unread(parameters, given)])]
    return [*lines, "", *given.skipped] if given.skipped else lines


def _unread(parameters: DiagnosisParameters, given: Given) -> str:
    """Why tokens were not compared although dataset and tokenizer are known."""
    try:
        text_rows(given.dataset, 1)
        load_vocabulary(given.tokenizer, trust_remote_code=parameters.trust_remote_code)
    except HslibError as error:
        return f"TOKENIZATION NOT COMPARED: {error}"
    return token_sentences([])[0]


def is_good(
    parameters: DiagnosisParameters, found: Diagnosis, compared: Sequence[Compared]
) -> bool:
    """Whether all that was asked for was compared, and agrees."""
    given = what_is_given(parameters)
    main = reference(compared)
    is_asked = bool(parameters.tokenizer_path or parameters.server_url)
    if main is None and is_asked:
        return False
    agrees = main is None or not (main.differing or main.left_out)
    seen = found.verdict.num_compared or (not given.evidence and main is not None)
    return bool(seen) and agrees and not found.verdict.findings


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
