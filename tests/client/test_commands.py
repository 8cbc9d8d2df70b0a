"""`octavo generate` and `octavo chat` as processes of their own, against a scripted service."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from client.scripted_service import WORDS, ScriptedService
from octavo.inference.v1 import inference_pb2 as pb
from octavo.rpc.errors import InvalidRequest, NoWorker, Overloaded

ANSWER = "".join(WORDS)
PROGRAM = """
import sys, typer
from octavo.cli.chat import chat
from octavo.cli.generate import generate
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(generate)
app.command()(chat)
app(sys.argv[1:])
"""


@asynccontextmanager
async def command(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": "", "COLUMNS": "200", "TERM": "dumb"},
    )
    try:
        async with asyncio.timeout(60):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def run(*arguments: str, stdin: str = "") -> tuple[int | None, str, str]:
    async with command(*arguments) as process:
        out, err = await process.communicate(stdin.encode())
    return process.returncode, out.decode(), err.decode()


async def read_until(process: asyncio.subprocess.Process, text: str) -> str:
    assert process.stdout is not None
    seen = ""
    while text not in seen:
        piece = await process.stdout.read(100)
        assert piece, f"ended without {text!r}: {seen!r}"
        seen += piece.decode()
    return seen


async def test_generate_prints_the_answer_alone(service: ScriptedService) -> None:
    code, out, err = await run("generate", "Hi", "--address", service.address)
    assert (code, out, err) == (0, ANSWER + "\n", "")
    (message,) = service.requests[0].chat.messages
    assert (message.role, message.content) == ("user", "Hi")
    assert not service.requests[0].sampling.ListFields()


async def test_generate_sends_its_options(service: ScriptedService) -> None:
    options = "--max-tokens 9 --temperature 0 --top-p 0.5 --top-k 3 --min-p 0.1 --seed 7"
    code, out, err = await run(
        "generate", "-", "--raw", "--stats", "--stop", "a", "--stop", "b", "--model", "tiny",
        *options.split(), "--address", service.address, stdin="from a pipe",
    )  # fmt: skip
    assert (code, out) == (0, ANSWER + "\n")
    assert "5 tokens in (2 cached, 0 transferred), 4 out" in err
    assert "ended by stop_sequence" in err
    request = service.requests[0]
    sampling = request.sampling
    assert (request.text, request.model, list(sampling.stop)) == ("from a pipe", "tiny", ["a", "b"])
    assert (sampling.max_tokens, sampling.top_k, sampling.seed) == (9, 3, 7)
    assert sampling.HasField("temperature") and sampling.temperature == 0
    assert (sampling.top_p, round(sampling.min_p, 6)) == (0.5, 0.1)


async def test_several_answers_are_printed_under_their_numbers(service: ScriptedService) -> None:
    code, out, err = await run("generate", "hi", "--address", service.address, "-n", "2")
    assert (code, out) == (0, f"[0] {ANSWER}\n[1] {ANSWER}\n"), err
    assert service.requests[0].sampling.n == 2


async def test_generate_asks_for_structured_output(
    service: ScriptedService, tmp_path: Path
) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "object"}', encoding="utf-8")
    for flags, field, value in (
        (["--json-schema", str(file)], "json_schema", '{"type": "object"}'),
        (["--choice", "yes", "--choice", "no"], "choice", ["yes", "no"]),
    ):
        code, _, err = await run("generate", "Hi", *flags, "--address", service.address)
        assert code == 0, err
        sampling = service.requests[-1].sampling
        assert sampling.WhichOneof("constraint") == field
        sent = getattr(sampling, field)
        assert (list(sent.values) if field == "choice" else sent) == value


async def test_generate_offers_tools_and_prints_calls(
    service: ScriptedService, tmp_path: Path
) -> None:
    call = pb.ToolCall(id="call_1", name="f", arguments_json='{"a": "é"}')
    service.tool_calls = [call, call]
    file = tmp_path / "tools.json"
    file.write_text('[{"type": "function", "function": {"name": "f"}}]')
    code, out, err = await run("generate", "Hi", "--tools", str(file), "--address", service.address)
    assert (code, err) == (0, "")
    answer, *calls = out.splitlines()
    assert answer == ANSWER
    assert [json.loads(line)["function"]["arguments"] for line in calls] == ['{"a": "é"}'] * 2
    (tool,) = service.requests[0].chat.tools
    assert (tool.name, json.loads(tool.parameters_json)["type"]) == ("f", "object")
    for content in ("{}", "[1]", "no JSON"):
        file.write_text(content)
        code, out, err = await run("generate", "Hi", "--tools", str(file))
        assert (code, out) == (2, "") and "tools.json" in err


async def test_a_service_that_does_not_run_is_answered_with_how_to_start_it(
    unused_tcp_port: int,
) -> None:
    for verb in (["generate", "Hi"], ["chat"]):
        address = f"127.0.0.1:{unused_tcp_port}"
        code, out, err = await run(*verb, "--address", address)
        assert (code, out) == (1, "")
        assert address in err and "start one with: octavo up" in err


async def test_an_error_of_the_service_says_what_to_do(service: ScriptedService) -> None:
    errors = {
        "start with": NoWorker("no prefill worker; start with more"),
        "try again in 2 s": Overloaded("the queue is full", retry_after_s=2),
        "octavo generate --raw": InvalidRequest("chat", "chat: the model has no chat template"),
    }
    for expected, error in errors.items():
        service.failures.clear()
        service.failures.extend([error] * 3)
        code, out, err = await run("generate", "Hi", "--address", service.address)
        assert (code, out) == (1, "")
        assert expected in err


async def test_a_bad_option_is_named(service: ScriptedService) -> None:
    code, _, err = await run("generate", "Hi", "--top-p", "2", "--address", service.address)
    assert code == 2
    assert "top_p" in err and "2" in err
    assert service.requests == []


async def test_interrupting_generate_cancels_the_request(service: ScriptedService) -> None:
    service.is_stuck = True
    async with command("generate", "Hi", "--address", service.address) as process:
        await read_until(process, WORDS[1])
        process.send_signal(signal.SIGINT)
        await process.wait()
        await service.ended.wait()
    assert process.returncode == 130


async def test_chat_remembers_until_reset(service: ScriptedService) -> None:
    code, out, err = await run(
        "chat", "--system", "Be brief.", "--stats", "--address", service.address,
        stdin="one\n\ntwo\n/what\n/reset\nthree\n/exit\nnever\n",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert out.count(ANSWER) == 3
    assert out.count("4 out") == 3
    assert "no such command" in out
    asked = [[(m.role, m.content) for m in r.chat.messages] for r in service.requests]
    system = ("system", "Be brief.")
    assert asked == [
        [system, ("user", "one")],
        [system, ("user", "one"), ("assistant", ANSWER), ("user", "two")],
        [system, ("user", "three")],
    ]


async def test_the_end_of_input_leaves_chat(service: ScriptedService) -> None:
    code, out, _ = await run("chat", "--address", service.address, stdin="one\n")
    assert code == 0
    assert out.count(ANSWER) == 1


async def test_an_interrupt_ends_the_answer_and_not_the_chat(service: ScriptedService) -> None:
    service.is_stuck = True
    async with command("chat", "--address", service.address) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        await read_until(process, WORDS[1])
        process.send_signal(signal.SIGINT)
        await service.ended.wait()
        service.is_stuck = False
        out, _ = await process.communicate(b"two\n/exit\n")
    assert process.returncode == 0
    assert ANSWER in out.decode()
    history = [(m.role, m.content) for m in service.requests[1].chat.messages]
    assert history == [("user", "one"), ("assistant", "A paged"), ("user", "two")]


async def test_an_error_ends_a_turn_and_not_the_chat(service: ScriptedService) -> None:
    service.late_failure = NoWorker("the decode worker died")
    async with command("chat", "--address", service.address) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        await read_until(process, "the decode worker died")
        service.late_failure = None
        out, _ = await process.communicate(b"two\n/exit\n")
    assert ANSWER in out.decode()
    # The turn that failed is not part of the conversation.
    assert [m.content for m in service.requests[1].chat.messages] == ["two"]


@pytest.mark.parametrize("verb", ["generate", "chat"])
async def test_help_needs_no_service(verb: str) -> None:
    code, out, _ = await run(verb, "--help")
    assert code == 0
    assert "--address" in out
