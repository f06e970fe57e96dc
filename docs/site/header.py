"""Makes the reference of the C interface of its header: a heading for each function and type, its comment below."""

from __future__ import annotations

import re

_COMMENT = re.compile(r"/\*(.*?)\*/", re.S)
_SECTION = re.compile(r"^-{3,} (.*?) -+$")
_ARGUMENT = re.compile(r"^  (\w+(?:, \w+)*)  +(\[(?:in|out|in, out|inout)\] *)?(\S.*)$")
_FIELD = re.compile(r"^ {8,}([a-z]\w*(?:, [a-z]\w*)*) {2,}(\S.*)$")  # of a JSON object that is an argument
_LABEL = re.compile(r"^([A-Z]\w+):? ")
_LABELS = ("Returns", "Blocks", "Cost", "Threads", "Since", "Ownership", "Memory", "Example", "Errors", "Limits")


def markdown(text: str) -> str:
    """Give the page. Raises ValueError if a declared function is not on it."""
    begin = text.index("/*")
    end = text.index("*/", begin) + 2
    out = [
        "# C\n",
        "The header `include/dynamo_go.h` is the contract; this page is made of it. C++ has a wrapper over it, `include/dynamo_go.hpp`, and Rust a\ncrate, in `examples/rust`.\n",
        _preamble(text[begin:end]),
    ]
    body = text[end : text.rindex("#ifdef __cplusplus")]
    position = body.index('extern "C" {')
    position = body.index("#endif", position) + len("#endif")
    for comment, code in _items(body[position:]):
        out.append(_item(comment, code))
    page = "\n".join(out)
    for name in functions(text):
        if f"## {name} " not in page:
            raise ValueError(f"{name} is declared in the header and not on its page")
    return page


def functions(text: str) -> list[str]:
    """Give the functions that the header declares."""
    return re.findall(r"^(?:static inline )?(?:const )?\w+ \*?(dgo_\w+)\(", _COMMENT.sub("", text), re.M)


def _lines(comment: str) -> list[str]:
    """Give a comment's lines without its frame."""
    inner = comment.strip().removeprefix("/*").removesuffix("*/")
    return [re.sub(r"^ ?\* ?", "", line).rstrip() if i else line.strip() for i, line in enumerate(inner.splitlines())]


def _items(text: str) -> list[tuple[str, str]]:
    """Cut the header into pairs of a comment and what is declared below it."""
    found: list[tuple[str, str]] = []
    position = 0
    while (start := _top_comment(text, position)) >= 0:
        if text[position:start].strip() and found:
            found[-1] = (found[-1][0], found[-1][1] + text[position:start])
        elif text[position:start].strip():
            found.append(("", text[position:start]))
        end = text.index("*/", start) + 2
        found.append((text[start:end], ""))
        position = end
    if text[position:].strip() and found:
        found[-1] = (found[-1][0], found[-1][1] + text[position:])
    return found


def _top_comment(text: str, position: int) -> int:
    """Find the next comment that begins a line and is in no braces."""
    depth = 0
    for match in re.compile(r"/\*.*?\*/|[{}]", re.S).finditer(text, position):
        token = match.group()
        if token in "{}":
            depth += 1 if token == "{" else -1
        elif depth == 0 and (match.start() == 0 or text[match.start() - 1] == "\n"):
            return match.start()
    return -1


def _item(comment: str, code: str) -> str:
    lines = _lines(comment) if comment else []
    if len(lines) == 1 and (section := _SECTION.match(lines[0])):
        return f"## {section[1]} {{#{section[1].lower().replace(' ', '-')}}}\n" + (_code(code) if code.strip() else "")
    name = _name(lines, code)
    if comment and not name and not code.strip():  # about what follows
        return _preamble(comment)
    heading = f"### {name} {{#{name}}}\n\n" if name else ""
    if name and lines:
        lines[0] = lines[0].removeprefix(f"{name}: ")
        lines[0] = lines[0][:1].upper() + lines[0][1:]
    return heading + (_code(code) if code.strip() else "") + _prose(lines)


def _name(lines: list[str], code: str) -> str:
    bare = _COMMENT.sub("", code)
    for pattern in (r"\b(dgo_\w+)\(", r"^} (dgo_\w+);", r"^typedef struct (dgo_\w+)", r"^typedef \w+ (dgo_\w+);"):
        if found := re.search(pattern, bare, re.M):
            return found[1]
    return ""


def _code(code: str) -> str:
    return f"```c\n{code.strip()}\n```\n\n"


def _prose(lines: list[str]) -> str:
    """Set a comment: paragraphs, a list of arguments, and what begins with a label in bold."""
    parts: list[str] = []
    indent = 0
    for line in lines:
        label = _LABEL.match(line)
        if argument := _ARGUMENT.match(line):
            direction = f" *{argument[2].strip(' []')}*" if argument[2] else ""
            parts.append(f"- **`{argument[1]}`**{direction}: {_quoted(argument[3])}")
            indent = 1
        elif indent and (field := _FIELD.match(line)):
            parts.append(f"    - `{field[1]}`: {_quoted(field[2])}")
        elif label and label[1] in _LABELS and ":" in line[: len(label[1]) + 1]:
            parts.append(f"\n**{label[1]}:** {_quoted(line[len(label[1]) + 1 :].strip())}")
            indent = 1
        elif not line:
            parts.append("")
            indent = 0
        elif not line.startswith(" ") and indent == 1 and parts and parts[-1].lstrip().startswith("- "):
            parts.append("\n" + _quoted(line))
            indent = 0
        elif parts and parts[-1]:
            parts[-1] += " " + _quoted(line.strip())
        else:
            parts.append(_quoted(line.strip()))
    text = "\n".join(parts)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"(?m)^(?!- )(.+)\n- ", r"\1\n\n- ", text)).strip() + "\n"


def _quoted(text: str) -> str:
    """Set identifiers and what Markdown would read otherwise as code."""
    return re.sub(
        r"(?<![`\w])((?:DGO|dgo)_\w+|[a-z]\w*_\w+(?:\.h)?)(?![`\w])", r"`\1`", re.sub(r"([*<>|\[\]{}])", r"\\\1", text)
    )


def _preamble(comment: str) -> str:
    """Set the header's first comment: paragraphs, an example, and a list of conventions."""
    out: list[str] = []
    code: list[str] = []
    for line in [*_lines(comment), ""]:
        if line.startswith("    ") and not re.match(r"^ {2,4}[A-Z]", line[0:6]) and (code or not out or out[-1] == ""):
            code.append(line[4:])
            continue
        if code and not line:
            code.append("")
            continue
        if code:
            out += ["```c", *"\n".join(code).strip("\n").splitlines(), "```", ""]
            code = []
        if convention := re.match(r"^  ([A-Z]\w+) +(\S.*)$", line):
            out.append(f"- **{convention[1]}.** {_quoted(convention[2])}")
        elif line.startswith("  ") and out and out[-1].startswith("- "):
            out[-1] += " " + _quoted(line.strip())
        else:
            out.append(_quoted(line.strip()))
    if code:
        out += ["```c", *"\n".join(code).strip("\n").splitlines(), "```", ""]
    text = "\n".join(out)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"(?m)^(?!- )(.+)\n- ", r"\1\n\n- ", text)) + "\n"
