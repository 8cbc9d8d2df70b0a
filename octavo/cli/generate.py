"""`octavo generate`: one answer of a running service, streamed to standard output."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli.connect import Address, ApiKey, CaFile, CertFile, KeyFile, Tls, client_tls, connect
from octavo.cli.failure import advice, exit_with
from octavo.cli.tools import call_lines, read_tools
from octavo.client import Client, Completion, OctavoError, Prompt, RequestFields


def generate(
    prompt: Annotated[str, typer.Argument(help='What to ask; "-" reads standard input.')],
    address: Address = "127.0.0.1:50051",
    api_key: ApiKey = None,
    tls: Tls = False,
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    model: Annotated[str, typer.Option(help="Default: the only one served.")] = "",
    lora_adapter: Annotated[str, typer.Option(help="A loaded LoRA adapter; default: none.")] = "",
    max_tokens: Annotated[int | None, typer.Option(help="Output tokens at most.")] = None,
    min_tokens: Annotated[int | None, typer.Option(help="Output tokens at least.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="0 to 1; 1 is off.")] = None,
    top_k: Annotated[int | None, typer.Option(help="0 is off.")] = None,
    min_p: Annotated[float | None, typer.Option(help="0 to 1; 0 is off.")] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="-2 to 2, on words said already; 0 is off.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="-2 to 2, for each time a word was said; 0 is off.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Over 1 avoids what was asked or said; 1 is off.")
    ] = None,
    bad_word: Annotated[list[str] | None, typer.Option(help="Shall not come; repeatable.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same answer.")] = None,
    n: Annotated[int | None, typer.Option("-n", help="Answers, 1 to 128; default 1.")] = None,
    json_schema: Annotated[
        typer.FileText | None, typer.Option(help="File with a schema that the answer follows.")
    ] = None,
    regex: Annotated[str | None, typer.Option(help="The whole answer matches it.")] = None,
    choice: Annotated[
        list[str] | None, typer.Option(help="The answer is this text or another; repeatable.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Ends the output; repeatable.")] = None,
    prompt_lookup: Annotated[
        bool | None, typer.Option(help="Guess tokens from the text so far; default: if it pays.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat/--raw", help="As a chat message, or as text to go on from.")
    ] = True,
    tools: Annotated[
        Path | None, typer.Option(help="JSON file: a list of tools; calls are printed as JSON.")
    ] = None,
    stats: Annotated[bool, typer.Option(help="Print counts and times to standard error.")] = False,
    timeout_s: Annotated[float | None, typer.Option(help="Give up after this long.")] = None,
) -> None:
    """Ask a running service and stream its answer. Options left out are the model's defaults."""
    text = sys.stdin.read() if prompt == "-" else prompt
    given = {
        "model": model or None,
        "lora_adapter": lora_adapter or None,
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "repetition_penalty": repetition_penalty,
        "bad_words": bad_word or None,
        "seed": seed,
        "n": n,
        "json_schema": json_schema.read() if json_schema else None,
        "regex": regex,
        "choice": choice or None,
        "stop": stop or None,
        "prompt_lookup": prompt_lookup,
        "tools": read_tools(tools) if tools else None,
    }
    fields = RequestFields(**{k: v for k, v in given.items() if v is not None})  # type: ignore[typeddict-item]
    message: Prompt = [{"role": "user", "content": text}] if chat else text
    try:
        show = _print_all if (n or 1) > 1 else _print_stream
        with connect(address, api_key, client_tls(tls, ca_file, cert_file, key_file)) as client:
            completion = show(client, message, fields, timeout_s)
    except OctavoError as error:
        raise exit_with(advice(error, address)) from error
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if stats:
        sys.stderr.write(f"{summary(completion)}\n")


def summary(completion: Completion) -> str:
    """Counts and times of one answer, in a line."""
    usage, timing = completion.usage, completion.timing
    decode_s = timing.total_s - timing.time_to_first_token_s
    rate = (usage.completion_tokens - 1) / decode_s if decode_s > 0 else 0.0
    return (
        f"{usage.prompt_tokens} tokens in ({usage.cached_prompt_tokens} cached, "
        f"{usage.transferred_prompt_tokens} transferred), {usage.completion_tokens} out, "
        f"first after {timing.time_to_first_token_s * 1000:.0f} ms, {rate:.1f} tokens/s, "
        f"ended by {completion.finish_reason}"
    )


def _print_all(
    client: Client, prompt: Prompt, fields: RequestFields, timeout_s: float | None
) -> Completion:
    """Print several answers, one behind the other, under their numbers."""
    completion = client.generate(prompt, timeout_s=timeout_s, **fields)
    for candidate in completion.candidates:
        text = candidate.text
        if candidate.tool_calls:
            text += "\n" * bool(text) + call_lines(candidate.tool_calls)
        sys.stdout.write(f"[{candidate.index}] {text}\n")
    return completion


def _print_stream(
    client: Client, prompt: Prompt, fields: RequestFields, timeout_s: float | None
) -> Completion:
    has_printed = False
    try:
        with client.stream(prompt, timeout_s=timeout_s, **fields) as stream:
            for delta in stream:
                text = delta.text
                if delta.tool_calls:
                    text += "\n" * (has_printed or bool(text)) + call_lines(delta.tool_calls)
                sys.stdout.write(text)
                sys.stdout.flush()
                has_printed = True
            return stream.completion
    finally:
        if has_printed:  # the line ends even if the stream broke off
            sys.stdout.write("\n")
            sys.stdout.flush()
