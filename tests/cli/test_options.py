"""Settings reach a role by flag, then environment, then file, then default."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from octavo.cli.gpus import count_gpus, gpu_environment
from octavo.cli.options import command_for


@dataclass(frozen=True)
class Settings:
    model: str = field(metadata={"help": "A model."})
    max_num_seqs: int = 4
    redis_url: str | None = None
    is_fast: bool = False
    prefill_address: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs must be at least 1, got {self.max_num_seqs}")


@pytest.fixture
def read() -> "Read":
    return Read()


class Read:
    """Runs the command and keeps what it was given."""

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self._app = typer.Typer()
        self._app.command()(command_for(Settings, self._keep))

    def _keep(self, settings: Settings) -> None:
        """Keep settings."""
        self.settings = settings

    def __call__(self, *arguments: str, env: dict[str, str] | None = None) -> Settings:
        result = self.run(*arguments, env=env)
        assert result.exit_code == 0, result.output
        assert self.settings is not None
        return self.settings

    def run(self, *arguments: str, env: dict[str, str] | None = None):  # type: ignore[no-untyped-def]
        return CliRunner().invoke(self._app, arguments, env=env)


def test_defaults_stand_where_nothing_is_said(read: Read) -> None:
    assert read("--model", "m") == Settings("m")


def test_flag_beats_environment_beats_file(read: Read, tmp_path: Path) -> None:
    file = tmp_path / "octavo.toml"
    file.write_text(
        'model = "file"\nmax_num_seqs = 1\nis_fast = true\nprefill_address = ["a", "b"]'
    )
    env = {"OCTAVO_MAX_NUM_SEQS": "2"}
    assert read("--config", str(file)) == Settings("file", 1, None, True, ("a", "b"))
    assert read("--config", str(file), env=env).max_num_seqs == 2
    assert read("--config", str(file), "--max-num-seqs", "3", env=env).max_num_seqs == 3


def test_a_list_is_given_by_repeating_its_flag(read: Read) -> None:
    settings = read("--model", "m", "--prefill-address", "a:1", "--prefill-address", "b:2")
    assert settings.prefill_address == ("a:1", "b:2")


def test_a_bad_value_ends_with_its_name_and_limit(read: Read) -> None:
    result = read.run("--model", "m", "--max-num-seqs", "0")
    assert result.exit_code == 2
    assert "max_num_seqs must be at least 1, got 0" in result.output


def test_an_unknown_name_in_the_file_is_refused(read: Read, tmp_path: Path) -> None:
    file = tmp_path / "octavo.toml"
    file.write_text('max_num_seq = 1\nmodel = "m"')
    result = read.run("--config", str(file))
    assert result.exit_code == 2
    assert "no such setting: max_num_seq" in result.output


def test_workers_share_gpus_in_turn(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert count_gpus(tmp_path) == 2
    shares = [gpu_environment(index, 3, 2) for index in range(3)]
    assert [share["CUDA_VISIBLE_DEVICES"] for share in shares] == ["0", "1", "0"]
    utilizations = [share["OCTAVO_GPU_MEMORY_UTILIZATION"] for share in shares]
    assert utilizations == ["0.450", "0.900", "0.450"]
    assert gpu_environment(0, 2, 0) == {}
