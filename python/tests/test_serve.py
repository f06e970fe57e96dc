"""The OpenAI endpoint, as clients meet it: the library openai, curl, and the commands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import openai
import pytest
from kit import FOREIGN

from dynamo_go import CannotConnect, DuplicateWorker, InvalidArgument, KvRouterConfig
from dynamo_go.mocker import Mocker
from dynamo_go.serve import Server

PATIENCE = 30.0
MODEL = "mock-8b"


def until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> float:
    """Wait, and give how long it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, what
        time.sleep(0.005)
    return time.monotonic() - start


def text(engine: Mocker) -> str:
    info = engine.info
    return f"{info['http']},{info['kv_events']},{info['replay']}"


class Site:
    """Four engines, and a server before them."""

    def __init__(self, engines: list[Mocker], server: Server) -> None:
        self.engines = engines
        self.server = server
        self.url = f"http://{server.info()['listen']}"
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)

    def idle(self) -> None:
        """Wait until nothing runs anywhere, and nothing is booked."""
        until(lambda: self.server.info()["inflight"] == 0, "requests in flight")
        until(lambda: not any(e.stats()["running"] + e.stats()["waiting"] for e in self.engines), "running requests")
        rows = [row for row in self.get("/metrics").splitlines() if "active_requests{" in row]
        assert rows and all(row.endswith(" 0") for row in rows), rows

    def told(self) -> None:
        """Wait until the router knows of all blocks that the engines hold."""

        def known() -> bool:
            (pairs,) = [row for row in self.get("/metrics").splitlines() if row.startswith("dynamo_go_index_pairs ")]
            return int(pairs.split()[1]) == int(sum(engine.stats()["cached_blocks"] for engine in self.engines))

        until(known, "blocks that are known")

    def get(self, path: str) -> str:
        body: bytes = urllib.request.urlopen(self.url + path, timeout=PATIENCE).read()
        return body.decode()

    def cancelled(self) -> int:
        return sum(engine.stats()["cancelled"] for engine in self.engines)


@contextlib.contextmanager
def site(count: int = 4, config: dict[str, Any] | None = None, **settings: Any) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(Mocker(**{"speedup": 20, **(config or {})})) for _ in range(count)]
        server = stack.enter_context(Server([text(e) for e in engines], "127.0.0.1:0", **settings))
        until(lambda: all(e["candidate"] for e in server.info()["engines"]), "engines that serve")
        yield Site(engines, server)


@pytest.fixture(scope="module")
def four() -> Iterator[Site]:
    with site() as s:
        yield s


def test_completions_of_text_and_of_ids(four: Site) -> None:
    by_text = four.client.completions.create(model=MODEL, prompt="hello", max_tokens=9)
    by_ids = four.client.completions.create(model=MODEL, prompt=list(b"hello"), max_tokens=9)
    assert by_text.choices[0].text == by_ids.choices[0].text != ""
    assert by_text.usage and by_text.usage.completion_tokens == 9
    pieces = [
        chunk.choices[0].text
        for chunk in four.client.completions.create(model=MODEL, prompt="hello", max_tokens=9, stream=True)
    ]
    assert "".join(pieces) == by_text.choices[0].text
    four.idle()


def test_chats(four: Site) -> None:
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me of blocks."}]
    whole = four.client.chat.completions.create(model=MODEL, messages=messages, max_tokens=12)
    assert whole.choices[0].finish_reason == "length"
    stream = four.client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    said, usage = "", None
    for chunk in stream:
        usage = chunk.usage or usage
        said += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert said == whole.choices[0].message.content
    assert usage is not None and usage.completion_tokens == 12
    four.idle()


def test_a_talk_stays_where_its_blocks_are(four: Site) -> None:
    messages: Any = [{"role": "user", "content": "A long enough beginning that fills some blocks of sixteen."}]
    cached = []
    for turn in range(4):
        answer = four.client.chat.completions.create(model=MODEL, messages=messages, max_tokens=20)
        assert answer.usage and answer.usage.prompt_tokens_details
        cached.append(answer.usage.prompt_tokens_details.cached_tokens or 0)
        messages += [
            answer.choices[0].message.model_dump(exclude_none=True),
            {"role": "user", "content": f"More {turn}."},
        ]
        four.told()
    assert cached[0] == 0 and all(after > before for before, after in zip(cached, cached[1:])), cached
    assert four.server.info()["untokenized"] == 0


def test_models_and_health(four: Site) -> None:
    assert [model.id for model in four.client.models.list()] == [MODEL]
    assert json.loads(four.get("/health"))["status"] == "ready"


def test_errors_are_the_engines_own(four: Site) -> None:
    with pytest.raises(openai.NotFoundError, match="not served here"):
        four.client.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError, match="max_tokens is -1"):
        four.client.completions.create(model=MODEL, prompt="x", max_tokens=-1)
    with pytest.raises(openai.BadRequestError, match="messages"):
        four.client.chat.completions.create(model=MODEL, messages=[])
    with pytest.raises(openai.NotFoundError, match="/v1/embeddings is not served here"):
        four.client.embeddings.create(model=MODEL, input="x")
    four.idle()


def test_a_client_that_leaves_cancels_the_engine() -> None:
    with site(config={"speedup": 1, "inter_token_ms": 50}) as s:
        for stream in (True, False):
            before = s.cancelled()

            def ask(stream: bool = stream) -> None:
                client = openai.OpenAI(base_url=f"{s.url}/v1", api_key="none", max_retries=0, timeout=0.5)
                with contextlib.suppress(openai.APITimeoutError):
                    answer: Any = client.completions.create(model=MODEL, prompt="x", max_tokens=2000, stream=stream)
                    for n, _ in enumerate(answer):
                        if n == 3:
                            break
                    answer.close()

            asking = threading.Thread(target=ask)
            asking.start()
            until(lambda b=before: s.cancelled() == b + 1, "a cancelled request")  # type: ignore[misc]
            asking.join()
        s.idle()


def test_an_engine_that_breaks_in_the_middle_is_told_as_an_error() -> None:
    with site(1, {"speedup": 1}) as s:
        fault(s.engines[0], requests=1, cut_after=3)
        stream = s.client.completions.create(model=MODEL, prompt="x", max_tokens=500, stream=True)
        got = 0
        with pytest.raises(openai.APIError, match="engine"):
            for _ in stream:
                got += 1
        assert got == 3
        fault(s.engines[0], requests=1, status=500, message="out of luck")
        with pytest.raises(openai.InternalServerError, match="out of luck"):
            s.client.completions.create(model=MODEL, prompt="x")
        s.idle()


def fault(engine: Mocker, **what: Any) -> None:
    request = urllib.request.Request(engine.info["http"] + "/fault", json.dumps(what).encode())
    urllib.request.urlopen(request, timeout=PATIENCE).read()


def test_before_the_first_token_another_engine_does_it(four: Site) -> None:
    before = four.server.info()["retries"]
    for engine in four.engines[:3]:
        fault(engine, requests=2, cut_after=0)  # a kept connection that breaks is tried again on a new one
    for n in range(12):
        answer = four.client.completions.create(model=MODEL, prompt=list(range(n * 1000, n * 1000 + 40)), max_tokens=3)
        assert answer.usage and answer.usage.completion_tokens == 3
    assert four.server.info()["retries"] > before
    for engine in four.engines:
        fault(engine, requests=0)
    four.idle()


def test_curl(four: Site) -> None:
    def curl(*arguments: str) -> str:
        command = ["curl", "-sS", "-m", "30", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=FOREIGN)
        assert done.returncode == 0, done.stderr
        return done.stdout

    body = json.dumps({"prompt": list(range(100, 200)), "max_tokens": 4, "return_token_ids": True})
    assert len(json.loads(curl(f"{four.url}/v1/completions", "-d", body))["choices"][0]["token_ids"]) == 4
    streamed = curl("-N", f"{four.url}/v1/completions", "-d", body.replace("{", '{"stream": true, ', 1))
    assert streamed.endswith("data: [DONE]\n\n") and streamed.count("data: ") >= 2
    large = json.dumps({"prompt": "x" * 50_000, "max_tokens": 2})  # curl asks with Expect: 100-continue
    got = json.loads(curl(f"{four.url}/v1/completions", "-H", "Expect: 100-continue", "-d", large))
    assert got["usage"]["prompt_tokens"] == 50_000
    assert "405" in curl("-o", os.devnull, "-w", "%{http_code}", f"{four.url}/v1/completions")
    assert json.loads(curl("--http1.0", f"{four.url}/v1/models"))["data"][0]["id"] == MODEL


def test_streams_while_engines_die() -> None:
    """Requests without a token go elsewhere; streams that had some end with an error, and none hangs."""
    streams = 500
    with contextlib.ExitStack() as stack:
        config = {"speedup": 1, "inter_token_ms": 20, "max_num_seqs": 512, "prefill_tokens_per_second": 1e8}
        engines = [Mocker(**config) for _ in range(4)]
        for engine in engines:
            stack.callback(engine.close)
        server = stack.enter_context(Server([text(e) for e in engines], "127.0.0.1:0"))
        url = f"http://{server.info()['listen']}/v1/completions"
        until(lambda: all(e["candidate"] for e in server.info()["engines"]), "engines that serve")
        ended: list[str] = []
        begun = threading.Semaphore(0)

        def ask(n: int) -> None:
            body = json.dumps({"prompt": list(range(n * 64, n * 64 + 64)), "max_tokens": 100, "stream": True}).encode()
            got = 0
            try:
                with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as answer:
                    for line in answer:
                        got += line.startswith(b"data: {")
                        if got == 1 and line.startswith(b"data: {"):
                            begun.release()
                        if b'"error"' in line:
                            ended.append("error after a token" if got > 1 else "error without a token")
                            return
                        if line == b"data: [DONE]\n":
                            ended.append("done")
                            return
                ended.append("cut off")
            except OSError as error:
                ended.append(f"failed without a token: {error}" if got == 0 else "cut off")

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(streams)]
        for thread in threads[: streams * 4 // 5]:
            thread.start()
        for _ in range(streams // 5):
            begun.acquire(timeout=60)
        engines[0].close()
        for thread in threads[streams * 4 // 5 :]:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(ended) == streams
        assert set(ended) <= {"done", "error after a token"}, {e: ended.count(e) for e in set(ended)}
        assert ended.count("done") >= streams // 2
        until(lambda: server.info()["inflight"] == 0, "requests in flight")
        until(lambda: not any(e.stats()["running"] for e in engines[1:]), "running requests")


def test_modes_other_than_kv() -> None:
    with site(3, router_mode="round-robin") as s:
        for _ in range(9):
            s.client.completions.create(model=MODEL, prompt="x", max_tokens=1)
        assert [e.stats()["requests"] for e in s.engines] == [3, 3, 3]
    with site(2, router_mode="direct") as s:
        with pytest.raises(openai.BadRequestError, match="header X-Worker-Instance-Id has to"):
            s.client.completions.create(model=MODEL, prompt="x")
        ids = [e["worker_id"] for e in s.server.info()["engines"]]
        for worker in ids:
            headers = {"X-Worker-Instance-Id": str(worker)}
            s.client.completions.create(model=MODEL, prompt="x", max_tokens=1, extra_headers=headers)
        assert [e.stats()["requests"] for e in s.engines] == [1, 1]
        with pytest.raises(openai.NotFoundError):
            s.client.completions.create(model=MODEL, prompt="x", extra_headers={"X-Worker-Instance-Id": "7"})


def test_texts_are_encoded_here_if_it_is_wished() -> None:
    asked: list[str] = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        if text.startswith("bad"):
            raise ValueError(text)
        return list(text.encode())

    with site(2, encode=encode) as s:
        prompt = "a prompt of some blocks, " * 4
        for _ in range(3):
            answer = s.client.completions.create(model=MODEL, prompt=prompt, max_tokens=1)
            s.told()
        assert answer.usage and answer.usage.prompt_tokens_details
        assert (answer.usage.prompt_tokens_details.cached_tokens or 0) >= 80
        assert asked == [prompt] * 3
        s.client.completions.create(model=MODEL, prompt="bad", max_tokens=1)
        assert s.server.info()["untokenized"] == 1, "it was served all the same"
        s.client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}], max_tokens=1)
        assert len(asked) == 4, "messages are the engines'"


def test_wrong_settings() -> None:
    for settings, words in (
        ({"engines": []}, "neither engines nor a file"),
        ({"engines": ["ftp://x"]}, "ftp://x"),
        ({"engines": ["http://x,y"]}, "neither an endpoint nor a field"),
        ({"engines": ["http://x,color=red"]}, "no field"),
        ({"engines": ["http://x,dp_size=x"]}, "whole number"),
        ({"engines": ["http://x"], "router_mode": "best"}, "router mode"),
        ({"engines": ["http://x"], "limits": {"requests": -1}}, "requests is -1"),
        ({"engines": ["http://x"], "limits": {"color": 1}}, "color"),
        ({"engines": ["http://x"], "limits": {"requests": 0}}, "requests is 0, expected"),
        ({"engines": ["http://x"], "limits": {"read_seconds": float("nan")}}, "read_seconds is nan, expected"),
        ({"engines": ["http://x"], "limits": {"read_seconds": float("inf")}}, "read_seconds is inf, expected"),
        ({"engines": ["http://x"], "drain_seconds": -1}, "drain_seconds=-1, expected"),
        ({"engines": ["http://x"], "drain_seconds": float("inf")}, "drain_seconds is 1e.09, expected 0 .. 86400"),
        ({"engines": ["http://x"], "block_size": -1}, "block"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            Server(listen="127.0.0.1:0", **settings)
    with pytest.raises(DuplicateWorker):
        Server(["http://x", "http://x"], "127.0.0.1:0")
    with pytest.raises(
        TypeError, match=r"config: expected KvRouterConfig or None, got dict \(.*\): KvRouterConfig\(\*\*it\) makes one"
    ):
        Server(["http://x"], config={"router_temperature": 0.5})  # type: ignore[arg-type]
    with Server(["http://127.0.0.1:1"], "127.0.0.1:0", config=KvRouterConfig(router_temperature=0.5)) as server:
        with pytest.raises(CannotConnect):
            Server(["http://127.0.0.1:1"], server.info()["listen"])
        with pytest.raises(InvalidArgument):
            server.stop(-1)
        url = f"http://{server.info()['listen']}"
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{url}/health", timeout=PATIENCE)
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", b"{}"), timeout=PATIENCE)


class Command:
    """A command that serves."""

    def __init__(
        self, module: list[str], *arguments: str, stderr: int | IO[str] = subprocess.PIPE, **environment: str
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *module, *arguments], stdout=subprocess.PIPE, stderr=stderr,
            env={**os.environ, **environment},
        )  # fmt: skip
        self.watchdog = threading.Timer(60, self.process.kill)
        self.watchdog.start()

    def __enter__(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1].decode()
        facts: dict[str, Any] = json.loads(line)
        return facts

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.watchdog.cancel()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.mark.parametrize(
    "module",
    [["dynamo_go", "serve"], ["dynamo_go.frontend"], ["dynamo_go", "frontend"]],
    ids=["serve", "frontend", "command"],
)
def test_commands(module: list[str]) -> None:
    with Mocker(speedup=1, inter_token_ms=20) as engine:
        command = Command(module, "--engine", text(engine), "--http-host", "127.0.0.1", "--http-port", "0",
                          DYN_ROUTER_MODE="least-loaded", DYN_ROUTER_TEMPERATURE="0.5")  # fmt: skip
        with command as facts:
            assert facts["router_mode"] == "least-loaded" and facts["engines"] == [engine.info["http"]]
            client = openai.OpenAI(base_url=f"http://{facts['listen']}/v1", api_key="none", max_retries=0)
            until(lambda: '"ready"' in ask(f"http://{facts['listen']}/health"), "an engine that serves")
            stream = iter(client.completions.create(model=MODEL, prompt="x", max_tokens=50, stream=True))
            next(stream)
            command.process.send_signal(signal.SIGTERM)
            assert sum(1 for _ in stream) > 20, "what runs ends first"
            assert command.process.wait(30) == 0
            assert command.process.stderr is not None
            told = command.process.stderr.read().decode()
            assert f"{engine.info['http']} serves" in told and "stopping" in told


def test_a_stop_drains_and_a_second_signal_tells_streams() -> None:
    with Mocker(speedup=1, inter_token_ms=20) as engine:
        command = Command(["dynamo_go", "serve"], "--engine", text(engine), "--http-host", "127.0.0.1", "--http-port", "0",
                          "--drain-seconds", "3600")  # fmt: skip
        with command as facts:
            url = f"http://{facts['listen']}"
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            until(lambda: '"ready"' in ask(f"{url}/health"), "an engine that serves")
            command.process.send_signal(signal.SIGTERM)
            until(lambda: '"draining"' in ask(f"{url}/health"), "a drain")
            with pytest.raises(urllib.error.HTTPError, match="503"):
                urllib.request.urlopen(f"{url}/health", timeout=PATIENCE)
            stream = iter(client.completions.create(model=MODEL, prompt="x", max_tokens=5000, stream=True))
            next(stream)  # it is served
            command.process.send_signal(signal.SIGTERM)
            with pytest.raises(openai.APIError, match="the server is stopping"):
                for _ in stream:
                    pass
            assert command.process.wait(30) == 0
            assert command.process.stderr is not None
            assert "draining for 3600 s" in command.process.stderr.read().decode()


@pytest.mark.parametrize("level", [None, "info"])
def test_an_ejection_is_told_once(level: str | None, tmp_path: Path) -> None:
    said = tmp_path / "said"
    arguments = ["--http-host", "127.0.0.1", "--http-port", "0", *(["--log-level", level] if level else [])]
    with Mocker(speedup=20) as engine, said.open("w") as errors:
        command = Command(["dynamo_go", "serve"], "--engine", text(engine), *arguments, stderr=errors, DYN_LOG="blah")
        with command as facts:
            url = f"http://{facts['listen']}/health"
            until(lambda: '"ready"' in ask(url), "an engine that serves")
            engine.close()
            until(lambda: '"ejected"' in ask(url), "an ejection")
            time.sleep(1.5)  # it is looked twice a second, and checked again
    lines = said.read_text().splitlines()
    assert sum("ejected" in line for line in lines) == 1, lines
    assert sum("DYN_LOG='blah' has no level" in line for line in lines) == 1, lines


def test_a_mistake_in_the_file_of_engines_is_told(tmp_path: Path) -> None:
    path, said = tmp_path / "engines.yaml", tmp_path / "said"
    with Mocker(speedup=20) as engine, said.open("w") as errors:
        good = json.dumps({"engines": [{"url": engine.info["http"]}]})
        path.write_text(good)
        command = Command(["dynamo_go", "serve"], "--engines-file", str(path), "--http-host", "127.0.0.1",
                          "--http-port", "0", stderr=errors, DYN_LOG="")  # fmt: skip
        with command as facts:

            def told(page: str) -> str:
                error: str = json.loads(ask(f"http://{facts['listen']}{page}"))["engines_file"]["error"]
                return error

            path.write_text(good[:-1] + ', "bogus": 3}')
            until(lambda: "unknown key" in told("/health"), "the mistake")
            assert "unknown key" in told("/engines")
            until(lambda: "engines' file is not in force" in said.read_text(), "a line")
            path.unlink()
            until(lambda: "no such file" in told("/health"), "a file that is gone")
            until(lambda: "no such file" in said.read_text(), "a line")
            path.write_text(good)
            until(lambda: told("/health") == "", "a file that is well again")


def ask(url: str) -> str:
    try:
        answer: bytes = urllib.request.urlopen(url, timeout=PATIENCE).read()
    except urllib.error.HTTPError as error:
        answer = error.read()
    return answer.decode()


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "--engine is required"),
        (["--engine", "http://x", "--router-mode", "best"], "expected one of kv"),
        (["--engine", "http://x", "--grace-seconds", "-1"], "--grace-seconds is -1.0, expected"),
        (["--engine", "http://x", "--grace-seconds", "nan"], "--grace-seconds is nan, expected"),
        (["--engine", "http://x", "--drain-seconds", "-1"], "--drain-seconds is -1.0, expected 0 .. 86400"),
        (["--engine", "http://x", "--drain-seconds", "nan"], "--drain-seconds is nan, expected"),
        (["--engine", "http://x", "--read-timeout", "nan"], "--read-timeout is nan, expected"),
        (["--engine", "http://x", "--write-timeout", "0"], "--write-timeout is 0.0, expected"),
        (["--engine", "http://x", "--max-requests", "0"], "--max-requests is 0, expected"),
        (["--engine", "http://x", "--http-port", "x"], "--http-port is 'x'"),
        (
            ["--engine", "http://x", "--discovery-backend", "etcd"],
            "--discovery-backend of Dynamo's frontend does not apply",
        ),
        (["--engine", "http://x", "--router-mode", "random", "--load-aware"], "--load-aware is a preset"),
        (["--engine", "http://x", "--tokenizer", "/nowhere"], "--tokenizer /nowhere"),
        (["--engine", "nonsense"], "nonsense"),
        (["--engine", "http://x/v1"], "leave out /v1"),
        (["--engine", "http://x", "--router-replica-sync"], "--router-replica-sync (DYN_ROUTER_REPLICA_SYNC)"),
        (["--engine", "http://x", "--record-decisions", "-1"], "record_decisions"),
        (["--engine", "http://x", "--router-event-threads", "9"], "router_event_threads"),
    ],
)
def test_commands_say_what_is_wrong(arguments: list[str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dynamo_go", "serve", *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr


def test_a_tokenizer_file(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[UNK]": 0, "one": 300, "two": 301, "three": 302}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    from dynamo_go.serve import _encoder

    assert list(_encoder(str(path))("one two three four")) == [300, 301, 302, 0]
