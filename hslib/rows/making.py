"""A file of rows out of a source of conversations: streamed, in parallel, resumable.

``OUT`` appears when it is whole, with ``OUT.manifest.json`` and ``OUT.rejected.jsonl`` beside it.
Until then ``OUT.partial`` grows, and ``OUT.journal`` says how much of it counts: a killed job goes
on there and ends with the bytes of one that was not.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import msgspec
import xxhash

from hslib.dataset import Rejection, read_rows
from hslib.errors import JobError, ParameterError
from hslib.files import Lock, explained, sync_directory, write_atomically
from hslib.model import tokenizer_digest
from hslib.rows.chat import Chat, load_chat
from hslib.rows.chunk import CHUNK, Counts, MadeChunk, Raw, cut, digest_of, made_chunks
from hslib.rows.conversation import read_conversation
from hslib.rows.parquet import write_parquet
from hslib.rows.recipe import Recipe

_COMMIT_S = 1.0
_SHOWN = 20  # rejections in the manifest
_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")


class RowsManifest(msgspec.Struct, frozen=True):
    """How a file of rows was made, and what became of its source."""

    recipe: dict[str, Any]
    template_digest: str
    tokenizer_digest: str
    versions: dict[str, str]
    source: str
    source_digest: str
    counts: Counts
    first_rejected: list[dict[str, Any]]
    answers: dict[str, Any] = {}  # how the model answered anew, and what came of it
    format: str = "hslib rows 1"


class _Commit(msgspec.Struct, frozen=True):
    """A journal line: one chunk, and where it ends in both files."""

    digest: str
    counts: Counts
    end: int
    rejected_end: int


@dataclass(frozen=True)
class Files:
    """The names beside an output file."""

    out: Path

    @classmethod
    def of(cls, out: str | Path) -> "Files":
        """Raises :class:`ParameterError` for a name that says no known format."""
        if not str(out).endswith(_SUFFIXES):
            raise ParameterError(f"{out} has none of the suffixes {', '.join(_SUFFIXES)}")
        return cls(Path(out).absolute())

    def beside(self, suffix: str) -> Path:
        return self.out.with_name(self.out.name + suffix)

    @property
    def manifest(self) -> Path:
        return self.beside(".manifest.json")

    @property
    def rejected(self) -> Path:
        return self.beside(".rejected.jsonl")

    @property
    def partial(self) -> Path:
        return self.beside(".partial")

    @property
    def journal(self) -> Path:
        return self.beside(".journal")


def read_manifest(out: str | Path) -> RowsManifest:
    """The manifest beside a finished file; raises FileNotFoundError where there is none."""
    return msgspec.json.decode(Files(Path(out)).manifest.read_bytes(), type=RowsManifest)


def make_file(
    source: str | Path,
    out: str | Path,
    recipe: Recipe,
    workers: int = 0,
    on_progress: Callable[[Counts], object] = lambda _counts: None,
) -> RowsManifest:
    """Make the rows of all conversations of ``source``, or go on with what was begun.

    Args:
        out: ``.jsonl``, ``.jsonl.gz``, ``.jsonl.zst`` or ``.parquet``.
        workers: processes; 0 = one per core, at most eight.
        on_progress: gets the counts up to now.

    Raises:
        DatasetError: the source or the tokenizer can't be read.
        ParameterError: the template, ``out`` or the recipe can't be used.
        JobError: ``out`` was begun otherwise (it says in which field), or is not of this kit.
    """
    files = Files.of(out)
    chat = load_chat(recipe)
    asked = begun_manifest(chat, str(source))
    files.out.parent.mkdir(parents=True, exist_ok=True)
    with (
        Lock(files.beside(".lock"), "the file of rows"),
        explained(JobError, "the rows can't be written", files.out),
    ):
        try:
            return _make(files, asked, chat, workers, on_progress)
        finally:
            files.beside(".lock").unlink(missing_ok=True)


def _make(
    files: Files,
    asked: RowsManifest,
    chat: Chat,
    workers: int,
    on_progress: Callable[[Counts], object],
) -> RowsManifest:
    if files.beside(".answers").exists():
        raise JobError(
            f"{files.out.name} was begun with the model's own answers (regenerate)",
            path=str(files.out),
            fix="let that job end, or give another file",
        )
    if files.out.exists() and not files.journal.exists():
        return made_before(files, asked)
    commits = _begun(files, asked)
    if commits and not files.partial.exists():
        return _finish(files, asked, commits)
    chunks = cut(iter(read_rows(asked.source, columns=None)))
    for number, commit in enumerate(commits):
        if digest_of(next(chunks, [])) != commit.digest:
            raise _other_source(files, number)
    workers = workers or min(8, len(os.sched_getaffinity(0)))
    made = made_chunks(chat, _checked(chat, chunks), files.out.suffix, workers)
    commits += _write(files, made, commits, on_progress)
    return _finish(files, asked, commits)


def begun_manifest(chat: Chat, source: str) -> RowsManifest:
    """What is known before the first row."""
    ends = sorted({*chat.end_texts, *chat.recipe.end_tokens})
    recipe = {**asdict(chat.recipe), "end_tokens": ends}
    return RowsManifest(
        recipe=msgspec.json.decode(msgspec.json.encode(recipe, enc_hook=str)),
        template_digest=chat.template_digest,
        tokenizer_digest=tokenizer_digest(chat.recipe.model),
        versions={name: version(name) for name in ("transformers", "tokenizers", "jinja2")},
        source=source,
        source_digest="",
        counts=Counts(),
        first_rejected=[],
    )


def _differences(before: RowsManifest, asked: RowsManifest) -> list[str]:
    """Fields that the bytes of the rows depend on; a moved folder or file is not one."""
    names = {**before.recipe, **asked.recipe}.keys() - {"model", "chat_template"}
    found = [
        f"{name}: {before.recipe.get(name)!r} before, {asked.recipe.get(name)!r} now"
        for name in sorted(names)
        if before.recipe.get(name) != asked.recipe.get(name)
    ]
    for name in ("template_digest", "tokenizer_digest", "versions", "format"):
        if getattr(before, name) != getattr(asked, name):
            found.append(f"{name}: {getattr(before, name)} before, {getattr(asked, name)} now")
    return found


def require_same(files: Files, before: RowsManifest, asked: RowsManifest) -> None:
    if found := _differences(before, asked):
        raise JobError(
            f"{files.out.name} was begun with other settings: {'; '.join(found)}",
            path=str(files.out),
            fix="give the values that it was begun with, or another file",
        )


def _other_source(files: Files, chunk: int) -> JobError:
    first = chunk * CHUNK
    return JobError(
        f"the source's rows {first} to {first + CHUNK - 1} have changed since rows were made "
        "of them",
        path=str(files.out),
        fix="give the source that it was begun with, or another file",
    )


def made_before(files: Files, asked: RowsManifest) -> RowsManifest:
    """The manifest of a file that is whole, if it is what is asked for now."""
    if not files.manifest.exists():
        raise JobError(
            f"{files.out.name} exists, and was not made from conversations",
            path=str(files.out),
            fix="give another file",
        )
    before = read_manifest(files.out)
    require_same(files, before, asked)
    digests = [digest_of(raw) for raw in cut(iter(read_rows(asked.source, columns=None)))]
    if source_digest_of(digests) != before.source_digest:
        raise JobError(
            f"{files.out.name} was made from other conversations",
            path=str(files.out),
            fix="give the source that it was made from, or another file",
        )
    return before


def _begun(files: Files, asked: RowsManifest) -> list[_Commit]:
    """The chunks that count; what was written behind them is cut off."""
    lines = files.journal.read_bytes().split(b"\n")[:-1] if files.journal.exists() else []
    if not lines:
        for path in (files.partial, files.rejected):
            path.write_bytes(b"")
        write_atomically(files.journal, msgspec.json.encode(asked) + b"\n")
        return []
    require_same(files, msgspec.json.decode(lines[0], type=RowsManifest), asked)
    commits = [msgspec.json.decode(line, type=_Commit) for line in lines[1:]]
    os.truncate(files.journal, sum(len(line) + 1 for line in lines))
    if files.partial.exists():
        os.truncate(files.partial, commits[-1].end if commits else 0)
    elif not files.out.exists():  # else a kill came after the rename
        raise JobError(
            "the rows made so far are gone, but their journal is there",
            path=str(files.partial),
            fix=f"remove {files.journal.name} to begin anew",
        )
    os.truncate(files.rejected, commits[-1].rejected_end if commits else 0)
    return commits


def _checked(chat: Chat, chunks: Iterator[Raw]) -> Iterator[Raw]:
    """The chunks; one conversation of them is tokenized in the tokenizer's own way too."""
    is_checked = False
    for raw in chunks:
        for index, row in raw:
            if is_checked or isinstance(row, Rejection):
                continue
            found = read_conversation(index, row)
            is_checked = not isinstance(found, Rejection) and chat.check(found)
        yield raw


def _write(
    files: Files,
    made: Iterator[MadeChunk],
    before: list[_Commit],
    on_progress: Callable[[Counts], object],
) -> list[_Commit]:
    """Append what is made; every second what is durable is written to the journal."""
    commits: list[_Commit] = []
    counts = sum((commit.counts for commit in before), Counts())
    committed, last = 0, time.monotonic()
    with ExitStack() as stack:
        lines, rejected, journal = (
            stack.enter_context(path.open("ab"))
            for path in (files.partial, files.rejected, files.journal)
        )
        for chunk in made:
            lines.write(chunk.lines)
            rejected.write(chunk.rejected)
            commits.append(_Commit(chunk.digest, chunk.counts, lines.tell(), rejected.tell()))
            counts += chunk.counts
            on_progress(counts)
            if time.monotonic() - last > _COMMIT_S:
                _commit(lines, rejected, journal, commits[committed:])
                committed, last = len(commits), time.monotonic()
        _commit(lines, rejected, journal, commits[committed:])
    return commits


def _commit(
    lines: IO[bytes], rejected: IO[bytes], journal: IO[bytes], commits: list[_Commit]
) -> None:
    """What the journal counts is durable before the journal says so."""
    for file in (lines, rejected):
        file.flush()
        os.fsync(file.fileno())
    journal.write(b"".join(msgspec.json.encode(commit) + b"\n" for commit in commits))
    journal.flush()
    os.fsync(journal.fileno())


def _finish(files: Files, asked: RowsManifest, commits: list[_Commit]) -> RowsManifest:
    """Let the file appear, then its manifest; each step may be repeated after a kill."""
    if files.partial.exists():
        appear(files)
    manifest = msgspec.structs.replace(
        asked,
        source_digest=source_digest_of([commit.digest for commit in commits]),
        counts=sum((commit.counts for commit in commits), Counts()),
    )
    manifest = write_manifest(files, manifest)
    for path in (files.partial, files.journal):
        path.unlink(missing_ok=True)
    return manifest


def appear(files: Files) -> None:
    """Put what was made in its place."""
    for path in (files.partial, files.rejected):
        with path.open("rb") as handle:
            os.fsync(handle.fileno())
    if files.out.suffix == ".parquet":
        write_parquet(files.partial, files.out)
    else:
        files.partial.replace(files.out)
    sync_directory(files.out.parent)


def write_manifest(files: Files, manifest: RowsManifest) -> RowsManifest:
    """Write it, with the first rejections of their file."""
    with files.rejected.open("rb") as handle:
        shown = [msgspec.json.decode(line) for line, _ in zip(handle, range(_SHOWN), strict=False)]
    manifest = msgspec.structs.replace(manifest, first_rejected=shown)
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    write_atomically(files.manifest, text + b"\n")
    return manifest


def source_digest_of(digests: list[str]) -> str:
    """xxh3-128 over the chunks' digests."""
    return xxhash.xxh3_128_hexdigest("".join(digests).encode())
