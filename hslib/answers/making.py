"""A file of rows whose answers the served model gave, with its manifest; resumable.

Until ``OUT`` is whole, ``OUT.answers`` has a line for each conversation that was answered.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hslib.answers.journal import AnswerJournal, Outcome
from hslib.answers.regenerate import AnswerProgress, AnswerSettings, Asked, Regeneration
from hslib.answers.servers import served
from hslib.answers.turns import questions
from hslib.dataset import Rejection, read_rows
from hslib.errors import JobError, ServerError
from hslib.files import Lock, explained
from hslib.model import read_shape
from hslib.parameters import RowsParameters
from hslib.rows import (
    Chat,
    Conversation,
    Counts,
    Recipe,
    Row,
    RowsManifest,
    load_chat,
    make_file,
    making,
    read_conversation,
)
from hslib.rows.chunk import CHUNK, cut, digest_of, packed_chunk
from hslib.rows.passages import forged_turn, half_character
from hslib.server import ServerClient


def make_rows(
    parameters: RowsParameters, show: Callable[[str], None] = lambda _line: None
) -> RowsManifest:
    """The file of rows that notebook 00's parameters ask for, of the data's answers or anew.

    Args:
        show: called with each new line of progress.

    Raises:
        HslibError: see :func:`hslib.rows.make_file` and :func:`answer_file`.
    """
    source, out, recipe = parameters.source, parameters.out_file, parameters.recipe
    if not parameters.regenerate:
        return make_file(source, out, recipe, parameters.workers, lambda c: show(c.line()))
    settings = AnswerSettings(
        temperature=parameters.temperature,
        max_answer_tokens=parameters.max_answer_tokens,
        max_tokens=parameters.max_tokens,
        samples=parameters.samples,
        keep_cut=parameters.cut_answers == "keep",
        concurrency=parameters.concurrency,
    )
    files = making.Files.of(out)
    if files.out.exists() and not files.beside(".answers").exists():
        return answer_file(source, out, recipe, settings, servers=())  # made before
    load_chat(recipe)  # what can be wrong is said before a server is started
    next(iter(read_rows(source, columns=None)), None)
    with served(parameters, show) as servers:
        return answer_file(source, out, recipe, settings, servers, lambda p: show(p.line()))


def answer_file(
    source: str | Path,
    out: str | Path,
    recipe: Recipe,
    settings: AnswerSettings,
    servers: Sequence[ServerClient],
    on_progress: Callable[[AnswerProgress], None] = lambda _progress: None,
) -> RowsManifest:
    """Let the served model answer every conversation of ``source``, or go on with what was begun.

    Args:
        out: ``.jsonl``, ``.jsonl.gz``, ``.jsonl.zst`` or ``.parquet``.
        servers: all serve ``recipe.model``.

    Raises:
        DatasetError, ParameterError: as :func:`hslib.rows.make_file`.
        ServerError: a server serves another model.
        JobError: ``out`` was begun otherwise; or conversations failed, or an interrupt ended it:
            what is answered is kept, and a rerun goes on.
    """
    files, chat = making.Files.of(out), load_chat(recipe)
    asked = making.begun_manifest(chat, str(source))
    model = {"model": str(recipe.model), "config": read_shape(recipe.model).config_hash}
    asked = msgspec.structs.replace(
        asked, recipe={**asked.recipe, "regenerated": {**settings.of_the_answers(), **model}}
    )
    files.out.parent.mkdir(parents=True, exist_ok=True)
    journal_path = files.beside(".answers")
    with (
        Lock(files.beside(".lock"), "the file of rows"),
        explained(JobError, "the rows can't be written", files.out),
    ):
        if files.out.exists() and not journal_path.exists():  # else it was killed at the end
            return making.made_before(files, asked)
        if files.journal.exists():
            raise JobError(
                f"{files.out.name} was begun with the dataset's own answers, "
                "not with regenerated ones",
                path=str(files.out),
                fix="let that job end, or give another file",
            )
        settings = _within_limits(settings, servers, recipe.model)
        read = _Read()
        with AnswerJournal(journal_path, msgspec.json.encode(asked)) as journal:
            before = msgspec.json.decode(journal.begun_with, type=RowsManifest)
            making.require_same(files, before, asked)
            work = Regeneration(chat, servers, settings, journal, on_progress)
            _require_whole(work.run(_conversations(source, chat, read)))
            journal.require_no_more_than(read.count)
            last_only = recipe.train_on == "last"
            counts, answers = _write(files, journal.outcomes(), last_only)
        asked = msgspec.structs.replace(
            asked,
            counts=counts,
            answers=answers,
            source_digest=making.source_digest_of(read.digests),
        )
        manifest = making.write_manifest(files, asked)
        for path in (journal_path, files.partial, files.beside(".lock")):
            path.unlink(missing_ok=True)
    return manifest


def _within_limits(
    settings: AnswerSettings, servers: Sequence[ServerClient], model: Path
) -> AnswerSettings:
    """The same, with rows that every server takes.

    Raises:
        ServerError: one serves another model.
    """
    for server in servers:
        _require_model(server, model)
    limit = min(server.settings().max_req_input_len for server in servers)
    return replace(settings, max_tokens=min(settings.max_tokens or limit, limit))


@dataclass
class _Read:
    """What was read of the source so far."""

    digests: list[str] = field(default_factory=list)
    count: int = 0


def _require_model(server: ServerClient, folder: Path) -> None:
    name = server.settings().model_path
    served = Path(name)
    if served == folder or f"models--{name.replace('/', '--')}" in folder.parts:
        return
    if not served.is_dir():
        raise ServerError(
            f"the server at {server.url} serves {name}, which is not on this host, so it "
            f"can't be compared with {folder}",
            fix="put the folder (its config and tokenizer) at the same path, and set model_path "
            "to it",
        )
    if read_shape(served).config_hash != read_shape(folder).config_hash:
        raise ServerError(
            f"the server at {server.url} serves another model",
            expected=str(folder),
            got=name,
            fix="set model_path to what it serves, or leave server_url empty",
        )


def _conversations(source: str | Path, chat: Chat, read: _Read) -> Iterator[Asked]:
    """What is to be answered; notes what was read."""
    is_checked = False
    for raw in cut(iter(read_rows(source, columns=None))):
        read.digests.append(digest_of(raw))
        read.count += len(raw)
        for index, row in raw:
            digest = digest_of([(index, row)])
            found = row if isinstance(row, Rejection) else read_conversation(index, row, False)
            if not isinstance(found, Rejection):
                if not is_checked:  # one tells whether the tokenizer renders by code of its own
                    is_checked = chat.check(found)
                found = _askable(chat, found.with_system(chat.recipe.system_prompt))
            yield Asked(found, digest)


def _askable(chat: Chat, conversation: Conversation) -> Conversation | Rejection:
    def reject(reason: str, detail: str, fix: str) -> Rejection:
        return Rejection(conversation.index, conversation.id, reason, detail, fix)

    asked = list(questions(conversation.messages))
    if not asked:
        return reject("no_question", "no message has the role user", "drop the row")
    if half := half_character([*asked, *conversation.tools]):
        return reject("half_character", f"{half} is half of a surrogate pair", "correct the text")
    if problem := forged_turn(chat, [*asked, *conversation.tools]):
        return reject(*problem)
    return conversation


def _require_whole(progress: AnswerProgress) -> None:
    if progress.failed:
        index, reason = next(iter(progress.failed.items()))
        raise JobError(
            f"{len(progress.failed)} conversations are not answered; the first, row {index}: "
            f"{reason}",
            indices=sorted(progress.failed)[:20],
            fix="read the server's log; run again to repeat these",
        )
    if progress.interrupted:
        raise JobError(
            f"interrupted: {progress.done_before + progress.done} conversations are answered",
            fix="run again to go on",
        )


@dataclass(frozen=True, eq=False)
class GeneratedRow(Row):
    """``stop_reasons``: of each answer in it, ``stop`` or ``length`` (it was cut)."""

    stop_reasons: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "stop_reasons": self.stop_reasons}


_CURES = {
    "cut": 'raise max_answer_tokens, or set cut_answers to "keep"',
    "too_long": "raise max_tokens, or drop the conversation",
    "template": "the template can't take the model's own answer: give another chat_template",
}


def items_of(outcome: Outcome, last_only: bool) -> list[GeneratedRow | Rejection]:
    """The rows of an outcome, or its rejection. Several rows are numbered in their ids.

    Args:
        last_only: only the last answer trains.
    """
    # the last one is missing where it ended early, other than by a cut that was kept
    is_missing = outcome.reason and outcome.rows and outcome.rows[-1].stop_reasons[-1] == "stop"
    if not outcome.rows or (last_only and is_missing):
        fix = outcome.fix or _CURES.get(outcome.reason, "")
        return [Rejection(outcome.index, outcome.id, outcome.reason, outcome.detail, fix)]
    rows = outcome.rows[-1:] if last_only else outcome.rows
    found: list[GeneratedRow | Rejection] = []
    for number, row in enumerate(rows):
        mask = np.asarray(row.loss_mask, np.uint8)
        if last_only:
            mask[: len(mask) - row.last_answer] = 0
        row_id = f"{outcome.id}:{number}" if len(rows) > 1 else outcome.id
        ids = np.asarray(row.input_ids, "<i4")
        found.append(GeneratedRow(outcome.index, row_id, None, ids, mask, tuple(row.stop_reasons)))
    return found


def _write(
    files: making.Files, outcomes: Iterator[Outcome], last_only: bool
) -> tuple[Counts, dict[str, Any]]:
    """Write rows and rejections, and count; the rows appear when they are whole."""
    counts, ended_early, num_cut = Counts(), Counter[str](), 0
    with files.partial.open("wb") as rows, files.rejected.open("wb") as rejected:
        while group := list(islice(outcomes, CHUNK)):
            items = [item for outcome in group for item in items_of(outcome, last_only)]
            conversations = sum(outcome.sample == 0 for outcome in group)
            chunk = packed_chunk("", conversations, items, files.out.suffix)
            rows.write(chunk.lines)
            rejected.write(chunk.rejected)
            counts += chunk.counts
            ended_early.update(o.reason for o in group if o.rows and o.reason)
            num_cut += sum(row.stop_reasons.count("length") for o in group for row in o.rows)
    making.appear(files)
    return counts, {"answers_cut": num_cut, "ended_early": dict(ended_early)}
