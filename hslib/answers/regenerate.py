"""Every conversation answered anew by the model that is served, each exactly once, resumable."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import tenacity

from hslib.answers.journal import AnswerJournal, Outcome
from hslib.answers.turns import Ids, Message, converse, join
from hslib.dataset import Rejection
from hslib.errors import JobError, RequestError
from hslib.job import Interrupts, Tasks
from hslib.rows import Chat, Conversation
from hslib.server import Completion, ServerClient

MOST_FAILURES_IN_A_ROW = 20


@dataclass(frozen=True)
class AnswerSettings:
    """How the model answers.

    ``max_tokens``: of prompt and answers together, 0 = what the servers take. ``samples``: how
    often each conversation is answered. ``keep_cut``: whether an answer that came to
    ``max_answer_tokens`` is kept. ``server_wait_s``: how long a server that does not answer may
    take to come back.
    """

    temperature: float
    max_answer_tokens: int
    max_tokens: int
    samples: int = 1
    keep_cut: bool = False
    concurrency: int = 16
    server_wait_s: float = 600.0

    def of_the_answers(self) -> dict[str, Any]:
        """What the rows depend on."""
        names = ("temperature", "max_answer_tokens", "samples", "keep_cut")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Asked:
    """A conversation to be answered, or why it can't be; ``digest``: of it as it was read."""

    conversation: Conversation | Rejection
    digest: str


@dataclass
class AnswerProgress:
    """Counts of one run. ``failed``: conversations, with the last error."""

    done_before: int = 0
    done: int = 0
    generated_tokens: int = 0
    seconds: float = 0.0
    failed: dict[int, str] = field(default_factory=dict)
    interrupted: bool = False

    def line(self) -> str:
        rate = self.generated_tokens / self.seconds if self.seconds else 0.0
        failed = f", {len(self.failed)} FAILED" if self.failed else ""
        return f"{self.done_before + self.done:,} answered{failed}, {rate:,.0f} tokens/s"


class Regeneration:
    """Conversations in, journal lines out.

    Args:
        servers: they serve the same model; each request goes to the next of them.
        show: called about once a second.
    """

    def __init__(
        self,
        chat: Chat,
        servers: Sequence[ServerClient],
        settings: AnswerSettings,
        journal: AnswerJournal,
        show: Callable[[AnswerProgress], None] = lambda _progress: None,
    ) -> None:
        self._chat, self._settings, self._journal, self._show = chat, settings, journal, show
        self._servers = itertools.cycle(servers)
        ends = sorted({*chat.end_texts, *chat.recipe.end_tokens} - {""})
        self._end_ids = [int(n) for n in chat.tokenizer.convert_tokens_to_ids(ends)]
        self._tasks = Tasks(settings.concurrency)
        self._failures_in_a_row = 0
        self.progress = AnswerProgress(done_before=len(journal))

    def run(self, asked: Iterable[Asked]) -> AnswerProgress:
        """Completion what the journal has no line of; what failed is asked again by a rerun.

        An interrupt begins no further conversation, and those that are begun are answered to
        their end; a second one stops at once.

        Raises:
            JobError: too many conversations failed one after another.
        """
        began, todo = time.monotonic(), self._todo(asked)
        try:
            with Interrupts(self._tasks.wake) as interrupts:
                while self._fill(todo, interrupts) and interrupts.count < 2:
                    self._tasks.take(1.0)
                    self.progress.seconds = time.monotonic() - began
                    self._show(self.progress)
                self.progress.interrupted = interrupts.count > 0
        finally:
            self._tasks.shutdown(wait=False)
        return self.progress

    def _todo(self, asked: Iterable[Asked]) -> Iterator[tuple[Conversation, str, int]]:
        """What has no line yet; a rejection gets its line at once."""
        for one in asked:
            if isinstance(one.conversation, Conversation):
                for sample in range(self._settings.samples):
                    if not self._journal.has(one.conversation.index, sample, one.digest):
                        yield one.conversation, one.digest, sample
            elif not self._journal.has(one.conversation.index, 0, one.digest):
                self._journal.record(Outcome.rejected(one.conversation, one.digest))

    def _fill(self, todo: Iterator[tuple[Conversation, str, int]], interrupts: Interrupts) -> bool:
        """Keep as many in flight as the settings say; False when there is nothing more."""
        while len(self._tasks) < self._settings.concurrency and not interrupts.count:
            found = next(todo, None)
            if found is None:
                break
            self._submit(*found)
        return len(self._tasks) > 0

    def _submit(self, conversation: Conversation, digest: str, sample: int) -> None:
        self._tasks.submit(
            lambda: self._answer(conversation, digest, sample),
            lambda future: self._collect(conversation, future),
        )

    def _answer(self, conversation: Conversation, digest: str, sample: int) -> Outcome:
        """In a worker thread."""
        settings, tokens = self._settings, self._chat.tokens

        def render(messages: list[Message]) -> Ids:
            so_far = replace(conversation, messages=tuple(messages))
            return tuple(tokens.encode([self._chat.render(so_far, len(messages), prompt=True)])[0])

        def ask(prompt: Ids, most: int) -> Completion:
            return _patiently(
                lambda: next(self._servers).generate(
                    prompt, most, settings.temperature, self._end_ids
                ),
                settings.server_wait_s,
            )

        dialogue = converse(
            conversation.messages,
            render,
            ask,
            self._text,
            max_tokens=settings.max_tokens,
            max_answer_tokens=settings.max_answer_tokens,
            keep_cut=settings.keep_cut,
        )
        return Outcome(
            index=conversation.index,
            sample=sample,
            digest=digest,
            id=conversation.id if settings.samples == 1 else f"{conversation.id}#{sample}",
            rows=join(dialogue.turns),
            reason=dialogue.ended_by,
            detail=dialogue.detail,
        )

    def _text(self, ids: Ids) -> str:
        return str(self._chat.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def _collect(self, conversation: Conversation, future: Future[Outcome]) -> None:
        error = future.exception()
        if isinstance(error, RequestError):
            self._failures_in_a_row += 1
            self.progress.failed[conversation.index] = str(error)
            if self._failures_in_a_row == MOST_FAILURES_IN_A_ROW:
                raise JobError(
                    f"{self._failures_in_a_row} conversations failed one after another; "
                    f"the last: {error}",
                    fix="look at the server's log; run again to go on",
                )
            return
        outcome = future.result()
        self._journal.record(outcome)
        self._failures_in_a_row = 0
        self.progress.done += 1
        self.progress.generated_tokens += sum(sum(row.loss_mask) for row in outcome.rows)


def _patiently(call: Callable[[], Completion], patience_s: float) -> Completion:
    """Try again while another try may help; raises the last :class:`RequestError`."""
    tries: tenacity.Retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(
            lambda error: isinstance(error, RequestError) and bool(error.fields["retry"])
        ),
        wait=tenacity.wait_exponential(0.2, max=5.0),
        stop=tenacity.stop_after_delay(patience_s),
        reraise=True,
    )
    return tries(call)
