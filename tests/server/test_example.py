"""smb.example.toml repeats every default; whoever copies it changes nothing."""

import tomllib
from pathlib import Path

from smbroker.server.config import Config, as_table, load

EXAMPLE = Path(__file__).parents[2] / "smb.example.toml"


def test_the_example_has_every_setting_with_its_default() -> None:
    assert tomllib.loads(EXAMPLE.read_text()) == as_table(Config())


def test_the_example_is_a_configuration() -> None:
    assert load(EXAMPLE) == Config()
