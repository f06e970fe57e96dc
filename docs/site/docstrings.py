"""Lets docstrings that are read in editors and by `help` be read on the site too: their references become links."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|attr|mod|exc):`([^`]+)`")
_LITERAL = re.compile(r"::(\s*\n\s*\n)")
_POWER = re.compile(
    r"(`+[^`]*`+)|(\d)\*\*(\d+)"
)  # code, which stays as it is, or a power, which Markdown would make bold
_RETURNS = re.compile(r"^Returns:\n((?:    .*\n|\n(?=    ))*(?:    .*))", re.M)


def _returns(match: re.Match[str]) -> str:
    """Set what is returned as a paragraph: it is prose, which the parser would take for a list of types."""
    return "**Returns:** " + " ".join(line.strip() for line in match[1].splitlines())


def _public() -> set[str]:
    """Give `__all__` of the package."""
    tree = ast.parse((Path(__file__).resolve().parents[2] / "python" / "dynamo_go" / "__init__.py").read_text())
    (names,) = (n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__")
    return set(ast.literal_eval(names))


class Docstrings(griffe.Extension):
    """Turns :class:`Router` into a link to Router, and a paragraph's final :: into a colon."""

    public = _public()

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of whatever was found."""
        if obj.docstring is None:
            return
        owner = obj if obj.is_class else obj.parent

        def link(match: re.Match[str]) -> str:
            name = match[1].removeprefix("dynamo_go.")
            if name.split(".")[0] in self.public:
                return f"[`{name}`][dynamo_go.{name}]"
            if owner is not None and owner.is_class and name in owner.members:
                if ".compat." in owner.path:
                    return f"[`{name}`][{owner.path}.{name}]"
                if owner.name in self.public:  # shown under the name that it is imported by
                    return f"[`{name}`][dynamo_go.{owner.name}.{name}]"
            return f"`{name}`"

        text = _LITERAL.sub(r":\1", _ROLE.sub(link, obj.docstring.value))
        text = _POWER.sub(lambda m: m[1] or rf"{m[2]}<sup>{m[3]}</sup>", text)
        obj.docstring.value = _RETURNS.sub(_returns, text)
