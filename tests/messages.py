"""Every error of ours that the code raises, and whether some test names its words; found by reading both.

A raise is told by its file and the fixed parts of its message. A test reaches it when it holds a text of some length
that is in one of these parts, or that one of them is in. What a message is made of at run time is not told apart.
"""

import ast
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from parcellation import errors
from tests.readme import ROOT

KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
HOLE = "{}"
LEAST = 9  # letters of a part that says something
# What a regular expression is made of besides text.
PATTERN = re.compile(r"\.[*+]\??|\\[dwsSWD](?:\{\d+\})?[*+]?|[\[\](){}|^$]|(?<!\\)[*+?]")


@dataclass(frozen=True, order=True)
class Raise:
    """A place where an error of ours is raised; message: with holes where values go."""

    file: str
    line: int
    kind: str
    message: str
    end: int = 0

    @property
    def parts(self) -> list[str]:
        """The fixed parts of the message that say something."""
        found = [part.strip(" :;,()`'\"") for part in self.message.replace("\n", HOLE).split(HOLE)]
        return [part for part in found if len(part) >= LEAST and " " in part]

    @property
    def key(self) -> str:
        """What does not change when lines are added above."""
        return f"{self.file}: {self.message}"


def template(node: ast.AST) -> str:
    """A message as it is in the code, with holes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else HOLE for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    return HOLE


def raises(path: Path) -> Iterator[Raise]:
    """The raises of one file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        call = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] in KINDS:
            message = template(call.args[0]) if call.args else ""
            yield Raise(str(path.relative_to(ROOT)), node.lineno, ast.unparse(call.func), message, node.end_lineno)


def all_raises() -> list[Raise]:
    """Those of the whole package."""
    return sorted(one for path in (ROOT / "parcellation").rglob("*.py") for one in raises(path))


@cache
def said_by_tests() -> frozenset[str]:
    """The texts that tests hold, those of patterns in pieces."""
    texts = set()
    for path in (ROOT / "tests").glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 400:
                texts.add(node.value)
                texts.add(re.sub(r"\\(.)", r"\1", node.value))
                texts |= {re.sub(r"\\(.)", r"\1", piece) for piece in PATTERN.split(node.value)}
    return frozenset(text.strip() for text in texts if len(text.strip()) >= LEAST and " " in text.strip())


def across(text: str, before: str, after: str) -> bool:
    """Whether a text begins with the end of one part and ends with the beginning of the next one."""
    end = max((k for k in range(len(before) + 1) if k and text.startswith(before[-k:])), default=0)
    start = max((k for k in range(len(after) + 1) if k and text.endswith(after[:k])), default=0)
    return end >= 3 and start >= 2 and end + start >= LEAST


@cache
def said_at_once() -> str:
    return "\0".join(said_by_tests())


def reached(one: Raise) -> bool:
    """Whether some test holds words of the message."""
    if any(part in said_at_once() for part in one.parts):
        return True
    fixed = one.message.split(HOLE)
    pairs = [(a, b) for a, b in itertools.pairwise(fixed) if a.strip() and b.strip()]
    return any(
        any(text in part for part in one.parts) or any(across(text, *pair) for pair in pairs)
        for text in said_by_tests()
    )


AWAITED = ROOT / "tests" / "messages_awaited.txt"


def awaited() -> list[str]:
    """The keys of raises whose words no test holds yet."""
    return [line for line in AWAITED.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


def record(path: Path) -> None:
    """Note in a file where each error of ours is made from now on, for `python -m tests.messages FILE`."""
    plain = errors.ParcellationError.__init__

    def noted(self, *arguments) -> None:
        frame = sys._getframe(1)
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{frame.f_code.co_filename}:{frame.f_lineno}\n")
        plain(self, *arguments)

    errors.ParcellationError.__init__ = noted


def never_made(path: Path) -> list[Raise]:
    """The raises that no line of such a file is at."""
    made = set(path.read_text(encoding="utf-8").splitlines())
    return [
        one for one in all_raises() if not any(f"{ROOT / one.file}:{n}" in made for n in range(one.line, one.end + 1))
    ]


if __name__ == "__main__":
    left = never_made(Path(sys.argv[1]))
    print("\n".join(f"{one.file}:{one.line}: {one.kind}: {one.message}" for one in left))
    print(f"{len(left)} of {len(all_raises())} raises were not reached")
