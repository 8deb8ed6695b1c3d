"""Commands and their output in README.md and the guide."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class Block(NamedTuple):
    """Indented lines of a page."""

    #: The number of its first line.
    line: int
    text: str


class Command(NamedTuple):
    text: str
    #: What the page shows below it.
    output: str
    #: Whether it has a prompt, so that its output is that of a terminal.
    prompt: bool


#: The words with which a command begins in a block without prompts.
PROGRAMS = re.compile(r"([A-Z_]+=\S+ +)*(lightship|cargo|pip|make|export|openssl|cp|psql|java) ")


def blocks(page: Path) -> list[Block]:
    """The blocks that are indented by four blanks, also those in a list, without those between fences."""
    found: list[Block] = []
    lines: list[str] = []
    is_fenced = False
    after_blank = True
    for number, line in enumerate([*page.read_text().split("\n"), "end"], 1):
        if line.startswith("```"):
            is_fenced = not is_fenced
        is_code = not is_fenced and line.startswith("    ") and (after_blank or bool(lines))
        if is_code or (lines and not line):
            lines.append(line)
        elif lines:
            found += _parts(number - len(lines), lines)
            lines = []
        after_blank = not line
    return found


def _parts(number: int, lines: list[str]) -> list[Block]:
    """A block; if it begins with a command without a prompt, one for each paragraph."""
    text = "\n".join(lines).rstrip("\n")
    indent = min(len(line) - len(line.lstrip()) for line in text.split("\n") if line)
    text = "\n".join(line[indent:] for line in text.split("\n"))
    found: list[Block] = []
    for part in text.split("\n\n") if PROGRAMS.match(text) else [text]:
        found.append(Block(number, part))
        number += part.count("\n") + 2
    return found


def is_whole(command: str) -> bool:
    """Whether no quote is open, and no line follows after a backslash."""
    quote = ""
    escaped = False
    for letter in command:
        if escaped:
            escaped = False
        elif letter == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
    return not quote and not escaped


def commands(block: Block) -> list[Command] | None:
    """The commands of a block, with their output; `None` if it has another content."""
    lines = block.text.split("\n")
    prompt = lines[0].startswith("$ ")
    if not prompt and PROGRAMS.match(lines[0]) is None:
        return None
    found: list[Command] = []
    while lines:
        line = lines.pop(0)
        if prompt and not line.startswith("$ "):
            text, output, _ = found[-1]
            found[-1] = Command(text, f"{output}{line}\n", prompt)
            continue
        text = line.removeprefix("$ ") if prompt else line
        while not is_whole(text):
            text += "\n" + lines.pop(0)
        found.append(Command(text, "", prompt))
    return found


#: A number with a unit of time, size or rate, or a percentage.
QUANTITY = re.compile(r"[-+]?\d[\d,.]*(e-?\d+)? ?(ns|us|ms|s|min|h|[KMG]?i?B)(/s)?\b|[-+]?\d[\d.]*%")
#: Numbers, and the names of queries in a history.
NUMBER = re.compile(r"\b[0-9a-f]{8}-\d+|[-+]?\d[\d,.]*(e-?\d+)?")


def masked(line: str, numbers: bool = False) -> str:
    """A line without its layout and the quantities in it, which differ from run to run. `numbers` hides all numbers."""
    line = QUANTITY.sub("#", line)
    if numbers:
        line = NUMBER.sub("#", line)
    line = re.sub(r"([─█])\1*", r"\1", line)
    line = re.sub(r"#(\s+#)+", "#", line)
    return re.sub(r"\s+", " ", line).strip()
