"""RunConfig: one hash for one meaning, and a typing error is answered with the name that was meant."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from subnet.config import RunConfig, load_run_config, parse_run_config, preset_names
from subnet.errors import ConfigError


def test_every_preset_loads_and_survives_its_own_toml(tmp_path: Path) -> None:
    assert "localnet" in preset_names()
    for name in preset_names():
        run = load_run_config(name)
        path = tmp_path / f"{name}.toml"
        path.write_text(run.to_toml())
        assert load_run_config(str(path)).hash() == run.hash()


def test_equal_values_have_equal_hashes_and_any_change_has_another() -> None:
    run = RunConfig()
    assert parse_run_config(tomllib.loads(run.to_toml())).hash() == run.hash()
    assert run.with_values(**{"inner.beta1": 0.8}).hash() != run.hash()
    assert run.with_values(seed=2).hash() != run.hash()


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ({"round": {"microbatchs": 3}}, "did you mean 'round.microbatches'?"),
        ({"modle": {}}, "did you mean 'model'?"),
        ({"round": {"microbatches": 0}}, "round.microbatches"),
        ({"model": {"num_heads": 3}}, "model.width"),
        ({"stages": {"num_stages": 9}}, "stages.num_stages"),
        ({"stages": {"num_stages": 2, "blocks": [8]}}, "stages.blocks"),
    ],
)
def test_wrong_settings_are_named(plain: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_run_config(plain)
    assert says in str(caught.value)


def test_a_missing_preset_lists_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="localnet"):
        load_run_config("nowhere")


def test_every_field_has_a_description() -> None:
    for section, field in RunConfig.model_fields.items():
        kind = field.annotation
        fields = getattr(kind, "model_fields", {section: field})
        assert all(item.description for item in fields.values()), section
