"""Settings files as plain values: YAML of a size that a person writes, whatever somebody may have put into it.

A few lines of YAML can stand for billions of values, by names for parts that repeat parts. Here a file is bounded
before it is read, and what its names stand for is counted before anything is made of them. Tags that would call code
are errors.
"""

from pathlib import Path

import yaml

from parcellation.errors import InputMissing, UsageError

MOST_BYTES = 1 << 20  # a list of 50,000 subjects
MOST_VALUES = 200_000
MOST_DIGITS = 100  # of a number; Python writes none of more than 4,300


class _Loader(yaml.SafeLoader):
    """YAML without the silent rule that the last of two equal keys wins."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} twice", problem_mark=key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, what: str) -> object:
    """The content of a YAML file as plain values; `what` it is, such as `study`, is said in errors.

    Raises InputMissing when there is no file, and UsageError for one that is no text, not YAML, of more than a megabyte
    or of more than 200,000 values.
    """
    text = _text(path, what)
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            _count(node, {})
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    # PyYAML lets the ValueError of an impossible date such as 2020-13-45 through.
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UsageError(f"{path}: not valid YAML: too deeply nested for a {what} file") from None


def _text(path: Path, what: str) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
        text = content.decode()
    except FileNotFoundError:
        raise InputMissing(f"{path}: no such {what} file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as a text file: {error}") from error
    if len(content) > MOST_BYTES:
        raise UsageError(f"{path}: expected a {what} file of at most {MOST_BYTES >> 20} MiB, got more")
    return text


def _count(node: yaml.Node | None, known: dict[int, int | None]) -> int:
    """How many values a node stands for when every name in it is replaced by what it names."""
    if not isinstance(node, yaml.CollectionNode):
        if node is not None and node.tag.endswith((":int", ":float")) and len(node.value) > MOST_DIGITS:
            raise yaml.MarkedYAMLError(problem=f"a number of {len(node.value)} letters", problem_mark=node.start_mark)
        return 1
    if id(node) not in known:
        known[id(node)] = None
        pairs = isinstance(node, yaml.MappingNode)
        parts = [part for pair in node.value for part in pair] if pairs else node.value
        known[id(node)] = 1 + sum(_count(part, known) for part in parts)
    count = known[id(node)]
    if count is None:
        raise yaml.MarkedYAMLError(problem="a part that holds itself", problem_mark=node.start_mark)
    if count > MOST_VALUES:
        raise yaml.MarkedYAMLError(
            problem=f"expected at most {MOST_VALUES} values, got {count}", problem_mark=node.start_mark
        )
    return count
