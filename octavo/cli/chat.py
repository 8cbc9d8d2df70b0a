"""`octavo chat`: a conversation with a running service, turn by turn.

you> question --> [system, question, answer, question] --> service --> answer, streamed
"""

import contextlib
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from octavo.cli.connect import Address, ApiKey, CaFile, CertFile, KeyFile, Tls, client_tls, connect
from octavo.cli.failure import advice, exit_with
from octavo.cli.generate import summary
from octavo.client import Client, OctavoError, RequestFields

with contextlib.suppress(ImportError):  # not every Python has it
    import readline  # noqa: F401  # line editing and history for input()

HELP = "/reset starts anew, /exit (or Ctrl-D) leaves, Ctrl-C ends an answer"


class Conversation:
    """The messages so far; a turn is added only with its answer."""

    def __init__(self, client: Client, system: str | None, fields: RequestFields) -> None:
        self._client = client
        self._fields = fields
        self._start = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._start)

    def reset(self) -> None:
        self.messages = list(self._start)

    def ask(self, question: str, console: Console) -> str:
        """Print the answer while it arrives, and return its statistics.

        An interrupt ends the answer; what was said until then stays in the conversation.
        """
        messages = [*self.messages, {"role": "user", "content": question}]
        answer, report = "", "interrupted"
        try:
            with self._client.stream(messages, **self._fields) as stream:
                for delta in stream:
                    answer += delta.text
                    console.out(delta.text, end="", highlight=False)
                report = summary(stream.completion)
        except KeyboardInterrupt:
            pass
        finally:
            console.print()
        self.messages = [*messages, {"role": "assistant", "content": answer}]
        return report


def chat(
    address: Address = "127.0.0.1:50051",
    api_key: ApiKey = None,
    tls: Tls = False,
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    model: Annotated[str, typer.Option(help="Default: the only one served.")] = "",
    lora_adapter: Annotated[str, typer.Option(help="A loaded LoRA adapter; default: none.")] = "",
    system: Annotated[str | None, typer.Option(help="How the model should behave.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of one answer at most.")] = 512,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same answers.")] = None,
    stats: Annotated[bool, typer.Option(help="Print counts and times of each answer.")] = False,
) -> None:
    """Talk with a running service. /reset starts anew, /exit leaves, Ctrl-C ends an answer."""
    console = Console()
    fields = RequestFields(model=model, max_tokens=max_tokens)
    if lora_adapter:
        fields["lora_adapter"] = lora_adapter
    if temperature is not None:
        fields["temperature"] = temperature
    if seed is not None:
        fields["seed"] = seed
    with connect(address, api_key, client_tls(tls, ca_file, cert_file, key_file)) as client:
        try:
            served = client.get_model(model, timeout_s=10)
        except OctavoError as error:
            raise exit_with(advice(error, address)) from error
        console.print(f"[bold]{escape(served.model)}[/] at {escape(address)}. {HELP}.")
        talk(Conversation(client, system, fields), console, address, stats)


def talk(conversation: Conversation, console: Console, address: str, stats: bool) -> None:
    """Read lines until /exit or the end of input; an error ends a turn, not the conversation."""
    while True:
        try:
            line = input("you> ").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if line == "/exit":
            return
        if line == "/reset":
            conversation.reset()
            console.print("[dim]a new conversation[/]")
        elif line.startswith("/"):
            console.print(f"[dim]no such command; {HELP}[/]")
        elif line:
            try:
                report = conversation.ask(line, console)
            except (OctavoError, ValueError) as error:
                text = advice(error, address) if isinstance(error, OctavoError) else str(error)
                console.print(f"[red]octavo:[/] {escape(text)}", highlight=False)
                continue
            if stats:
                console.print(f"[dim]{escape(report)}[/]", highlight=False)
