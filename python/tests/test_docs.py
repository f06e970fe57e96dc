"""Everything in the documents runs: each fenced block by what its language says, or there is a reason why not."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import pytest
import yaml

import dynamo_go
from dynamo_go import KvRouterConfig, Router, _native
from dynamo_go._types import Finding
from dynamo_go.demo.cli import POLICIES
from dynamo_go.demo.report import _COLUMNS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Block(NamedTuple):
    """A fenced block of a document."""

    document: Path
    number: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.name}-{self.number}-{self.language or 'plain'}"


def blocks() -> list[Block]:
    found = []
    for document in DOCUMENTS:
        fences = re.finditer(r"^( *)(```+)([^\n`]*)\n(.*?)^\1\2$", document.read_text(), re.M | re.S)
        for number, fence in enumerate(fences):
            text = re.sub(rf"^{fence[1]}", "", fence[4], flags=re.M)
            found.append(Block(document, number, fence[3].strip(), text))
    return found


# Blocks that nothing runs, by document and first line, and why.
NOT_RUN = {
    ("dynamo.md", "import asyncio"): "a client of the commands before it; test_standalone.py runs all of them",
    ("README.md", "Caches that keep everything"): "what the demo prints; test_readme_shows_what_the_demo_prints",
}


def run_python(block: Block, _: Path) -> None:
    done = subprocess.run([sys.executable, "-c", block.text], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def run_go(block: Block, folder: Path) -> None:
    program = folder / "main.go"
    program.write_text(block.text)
    done = subprocess.run(["go", "run", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    formatted = subprocess.run(["gofmt", "-l", program], capture_output=True, text=True, check=True)
    assert formatted.stdout == "", "gofmt would change it"


def run_c(block: Block, folder: Path) -> None:
    package = Path(dynamo_go.__file__).parent
    source, program = folder / "program.c", folder / "program"
    source.write_text(block.text)
    flags = ["-std=c99", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{ROOT / 'include'}"]
    link = [f"-L{package}", "-ldynamo_go", f"-Wl,-rpath,{package}", "-pthread"]
    built = subprocess.run(["cc", *flags, "-o", program, source, *link], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def run_commands(block: Block, _: Path) -> None:
    """Each command exists and knows the flags; engines' commands are read as the engines would."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        if words:
            checks = [check for start, check in COMMANDS if words[: len(start)] == start]
            assert checks, f"nothing checks the command {line!r}"
            checks[0](words)


def build_command(words: list[str]) -> None:
    usage = subprocess.run([ROOT / "build.sh", "help"], capture_output=True, text=True, check=True).stdout
    assert re.search(rf"^  {words[1]}\b", usage, re.M), f"build.sh has no command {words[1]}"


def our_command(words: list[str]) -> None:
    shown = subprocess.run([sys.executable, *words[1:4], "--help"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    for flag in (w for w in words if w.startswith("--")):
        assert flag in shown.stdout, f"no flag {flag}"


# What vLLM's and SGLang's --kv-events-config has, in all versions that are supported.
EVENT_FIELDS = {"enable_kv_cache_events", "publisher", "endpoint", "replay_endpoint", "topic", "buffer_steps"}
ENGINE_FLAGS = {
    *("--kv-events-config", "--block-size", "--page-size", "--model-path", "--port", "--data-parallel-size"),
    *("--enable-prefix-caching", "--dp-size", "--enable-dp-attention", "--host", "--max-num-batched-tokens"),
}


def engine_command(words: list[str]) -> None:
    assert {word for word in words if word.startswith("--")} <= ENGINE_FLAGS
    config = json.loads(words[words.index("--kv-events-config") + 1])
    assert set(config) <= EVENT_FIELDS and config["publisher"] == "zmq"
    ports = []
    for name in ("endpoint", "replay_endpoint"):
        assert (found := re.fullmatch(r"tcp://\*:(\d+)", config[name])), config[name]
        ports.append(int(found[1]))
    assert abs(ports[0] - ports[1]) >= 8, "ranks add to both ports"


def plain_command(words: list[str]) -> None:
    assert shutil.which(words[0]) or words[0] in ("curl", "jq"), words[0]


COMMANDS: list[tuple[list[str], Callable[[list[str]], None]]] = [
    (["./build.sh"], build_command),
    (["python", "-m", "dynamo_go"], our_command),
    (["vllm", "serve"], engine_command),
    (["python", "-m", "sglang.launch_server"], engine_command),
    (["pip", "install"], plain_command),
    (["go", "doc"], plain_command),
    (["curl"], plain_command),
]


def run_yaml(block: Block, folder: Path) -> None:
    """A policy file makes a router, one of engines workers; rules and targets of Prometheus are read, and name metrics that exist; manifests of Kubernetes are what
    they say, and set variables that something reads."""
    documents = list(yaml.safe_load_all(block.text))
    assert all(isinstance(document, dict) for document in documents)
    content = documents[0]
    if "apiVersion" in content:
        for document in documents:
            check_manifest(document, documents)
    elif "policy_classes" in content:
        path = folder / "policy.yaml"
        path.write_text(block.text)
        Router(16, KvRouterConfig(router_policy_config=str(path))).close()
    elif "engines" in content:
        path = folder / "engines.yaml"
        path.write_text(block.text)
        member = _native.Runtime('{"discovery":"mem"}')
        member.watch_engines("a.b.c", str(path))
        assert len(json.loads(member.engines("a.b.c"))["engines"]) == len(content["engines"])
        member.close()
    else:
        assert set(content) <= {"groups", "scrape_configs"}, "nothing checks such a file"
        page = (ROOT / "docs" / "metrics.md").read_text()
        for name in re.findall(r"\bdynamo_\w+", block.text):
            assert f"`{name}`" in page, f"there is no metric {name}"
        source = "".join(path.read_text() for path in (ROOT / "core").rglob("*.go"))
        for label, value in re.findall(r'\b(\w+)!?="(\w+)"', block.text):
            assert f'"{label}"' in source and f'"{value}"' in source, f"no row has {label}={value!r}"


KINDS = {
    "Service": "v1",
    "ConfigMap": "v1",
    "Secret": "v1",
    "StatefulSet": "apps/v1",
    "Deployment": "apps/v1",
}


def check_manifest(document: dict[str, Any], others: list[dict[str, Any]]) -> None:
    assert document["apiVersion"] == KINDS[document["kind"]] and document["metadata"]["name"]
    source = "".join(path.read_text() for path in [*ROOT.glob("core/**/*.go"), *ROOT.glob("python/dynamo_go/**/*.py")])
    for name in (*document.get("data", {}), *document.get("stringData", {})):
        assert f'"{name}"' in source, f"nothing reads {name}"
    if "template" not in document.get("spec", {}):
        return
    spec = document["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    for container in spec["template"]["spec"]["containers"]:
        if container["command"][0] == "python":
            our_command(container["command"])
        for variable in container.get("env", []):
            assert f'"{variable["name"]}"' in source, f"nothing reads {variable['name']}"
        for given in container.get("envFrom", []):
            kind, wanted = (
                ("ConfigMap", given["configMapRef"]) if "configMapRef" in given else ("Secret", given["secretRef"])
            )
            assert any(o["kind"] == kind and o["metadata"]["name"] == wanted["name"] for o in others)


def run_json(block: Block, _: Path) -> None:
    json.loads(block.text)


def run_shown(block: Block, _: Path) -> None:
    """What the Python block before it prints."""
    before = [other for other in blocks() if other[:2] == (block.document, block.number - 1)]
    text = block.document.read_text()
    assert before and before[0].language == "python" and f"```\n\nprints\n\n```text\n{block.text}" in text, (
        "a text block is what the Python block before it prints, after the word 'prints', or is listed in NOT_RUN"
    )
    code = before[0].text
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == block.text


RUNNERS: dict[str, Callable[[Block, Path], Any]] = {
    "python": run_python,
    "go": run_go,
    "c": run_c,
    "sh": run_commands,
    "yaml": run_yaml,
    "json": run_json,
    "text": run_shown,
}


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_block(block: Block, tmp_path: Path) -> None:
    if (block.document.name, block.text.splitlines()[0]) not in NOT_RUN:
        assert block.language in RUNNERS, f"nothing runs a block of {block.language or 'no language'}"
        RUNNERS[block.language](block, tmp_path)


def test_every_fence_is_a_block() -> None:
    """No block escapes because it is written in a way that is not seen."""
    for document in DOCUMENTS:
        fences = len(re.findall(r"^\s*(?:```|~~~)", document.read_text(), re.M))
        assert fences == 2 * sum(block.document == document for block in blocks()), document.name
    listed = {(block.document.name, block.text.splitlines()[0]) for block in blocks()}
    assert set(NOT_RUN) <= listed, "NOT_RUN names blocks that are not there"


def test_documents_name_what_exists() -> None:
    """Paths in backticks exist."""
    for document in DOCUMENTS:
        for path in re.findall(
            r"`((?:core|capi|include|python|examples|docs|testdata|bench)/[\w./]*)`", document.read_text()
        ):
            assert (ROOT / path).exists(), f"{document.name} names {path}, which does not exist"


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if d.parent == ROOT], ids=lambda d: str(d.name))
def test_links_lead_somewhere(document: Path) -> None:
    """Those of the pages in docs/ are looked after when the site is built."""
    for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", document.read_text()):
        assert (ROOT / target).exists(), f"{document.name} leads to {target}, which does not exist"


def test_counters_and_reasons_exist() -> None:
    """What the troubleshooting page tells of is what the feed counts and says."""
    tables = (ROOT / "docs" / "troubleshooting.md").read_text().split("## States")[1].split("## Nothing is found")[0]
    said = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", tables)) - {
        "remove_worker",
        "allowed_worker_ids",
        "replay_endpoint",
        "use_kv_events",
        "load_events",
    }
    source = "".join((ROOT / path).read_text() for path in SOURCES)
    assert len(said) > 15
    for name in said:
        assert f'"{name}"' in source, f"docs/troubleshooting.md names {name}, which nothing counts or says"


SOURCES = (
    "core/feed/counters.go",
    "core/feed/machine.go",
    "core/wire/normalize.go",
    "core/router/config.go",
    "core/router/router.go",
)


def test_the_page_explains_every_finding() -> None:
    section = (ROOT / "docs" / "troubleshooting.md").read_text().split("## Findings")[1].split("\n## ")[0]
    source = (ROOT / "core" / "diagnose" / "doc.go").read_text()
    causes = re.findall(r'Cause = "(\w+)"', source)
    assert re.findall(r"^\| `(\w+)` \|", section, re.M) == causes == list(get_args(get_type_hints(Finding)["cause"]))


def test_readme_shows_what_the_demo_prints() -> None:
    """The figures on the first screen are there, under the demo's own column names."""
    shown = (ROOT / "README.md").read_text().split("<!-- demo -->")[1].split("<!-- /demo -->")[0]
    for column in _COLUMNS:
        assert column in shown, column
    for policy in POLICIES:
        assert len(re.findall(rf"^{policy} +0\.\d", shown, re.M)) == 2, policy
