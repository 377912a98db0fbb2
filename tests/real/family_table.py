"""The table of families in patches/README.md: what was run here, and SGLang's other classes.

    python tests/real/family_table.py    # write it anew

What SGLang has is read from its model files without importing them.
"""

import ast
import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from real.families import read_table

README = Path(__file__).parents[2] / "patches" / "README.md"
_BEGIN, _END = (
    "<!-- families: written by tests/real/prove_families.py -->\n",
    "<!-- families end -->\n",
)
# classes that are no targets of a drafter
_OTHERS = re.compile(
    "Eagle|NextN|Nextn|MTP|DSpark|DFlash|Embedding|Reward|Classification|Bert|Roberta|CLIP|Whisper"
    "|ASR|Asr|TextEncoder|ForProcessRewardModel|Bidirectional|Diffusion|MedusaModel|Assistant"
)
# layers that have no single stream to witness, by the model file that says so
_SEVERAL_STREAMS = {
    "deepseek_v4.py": "several residual streams",
    "gemma3n_causal.py": "several residual streams",
    "gemma3n_mm.py": "several residual streams",
    "glm5_next.py": "several residual streams",
    "hunyuan_v4.py": "several residual streams",
    "grok.py": "a layer's last norm runs in the next layer",
}


@cache
def models_folder() -> Path:
    spec = find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "srt" / "models"


def entry_classes() -> dict[str, str]:
    """SGLang's model classes, each with the file that registers it."""
    found = {}
    for path in sorted(models_folder().glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [t.id for t in getattr(node, "targets", []) if isinstance(t, ast.Name)]
            if "EntryClass" in names:
                for name in ast.walk(node.value):  # type: ignore[attr-defined]
                    if isinstance(name, ast.Name):
                        found[name.id] = path.name
    return found


@cache
def uses_stages(file: str) -> bool:
    """Whether a model file's layers, or those that it takes from another, are made of stages."""
    text = (models_folder() / file).read_text(encoding="utf-8")
    if "boundary.prepare(" in text:
        return True
    imported = re.findall(r"from sglang\.srt\.models\.(\w+) import", text)
    folder = models_folder()
    others = [f"{name}.py" for name in imported if (folder / f"{name}.py").exists()]
    return "DecoderLayer(" not in text and any(uses_stages(o) for o in others if o != file)


def table() -> str:
    """The whole block, in Markdown."""
    rows, classes = list(read_table().values()), entry_classes()
    run = {row["architecture"] for row in rows}
    lines = [
        "Run here with tiny random models of six layers (`tests/real/prove_families.py`): rows",
        "alone, in a batch and in chunks of 64, boundaries 2, 3, 5, 6 and final. *Witness*: the",
        "largest error of a stored state. *transformers*: the largest relative error of a state",
        "against transformers' own in bf16. *Other*: how many times farther the others are.",
        "",
        "| SGLang's class | | seam | witness | transformers | other | |",
        "|---|---|---|---|---|---|---|",
        *(_line(row) for row in sorted(rows, key=lambda row: row["architecture"])),
        "",
        "Not run here: the witness decides at start, on the model that you serve.",
        "",
        "| seam | classes |",
        "|---|---|",
    ]
    targets = {name: file for name, file in classes.items() if not _OTHERS.search(name)}
    for label, wanted in (("stage", True), ("layer's entrance", False)):
        names = [
            name
            for name, file in sorted(targets.items())
            if name not in run and file not in _SEVERAL_STREAMS and uses_stages(file) == wanted
        ]
        lines.append(f"| {label} | {', '.join(names)} |")
    for name, file in sorted(targets.items()):
        if file in _SEVERAL_STREAMS and name not in run:
            lines.append(f"| none: {_SEVERAL_STREAMS[file]} | {name} |")
    drafts = sorted(set(classes) - set(targets))
    lines += ["", f"No targets (drafts, embeddings, rewards, speech): {', '.join(drafts)}.", ""]
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    if row["reason"]:
        return f"| {row['architecture']} | refused | | | | | {row['reason']} |"
    if not row["errors"]:
        return f"| {row['architecture']} | not run | | | | | {row['note']} |"
    worst = max(row["errors"].values())
    return (
        f"| {row['architecture']} | proven | {', '.join(row['seams'])} | {row['witness']:.4f} "
        f"| {worst:.2%} | {row['nearest']:.0f} | {row['note']} |"
    )


def in_readme() -> str:
    return README.read_text(encoding="utf-8").split(_BEGIN)[1].split(_END)[0]


def write() -> None:
    before, rest = README.read_text(encoding="utf-8").split(_BEGIN)
    after = rest.split(_END)[1]
    README.write_text(f"{before}{_BEGIN}{table()}{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write()
