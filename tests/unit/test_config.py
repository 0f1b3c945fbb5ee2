"""The job file: defaults, round trip, and one clear line for everything that does not fit."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lurcher.config import (
    DetectSection,
    JobConfig,
    JobSection,
    LayoutSection,
    allowed,
    config_from_dict,
    config_from_toml_text,
    config_to_toml,
    layout_of,
    load_config,
    override,
)
from lurcher.errors import UserError
from lurcher.faults import parse_fault

KEYS = [
    (section.name, field.name)
    for section in msgspec.structs.fields(JobConfig)
    if section.name != "fault"
    for field in msgspec.structs.fields(type(section.default))
]


def error_of(text: str) -> str:
    with pytest.raises(UserError) as caught:
        config_from_toml_text(text)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_empty_file_is_the_default() -> None:
    assert config_from_toml_text("") == JobConfig()


def test_a_layout_alone_is_enough() -> None:
    config = config_from_toml_text("[layout]\ntp = 1\npp = 2\ndp = 4\nnum_microbatches = 8\n")
    assert config.layout == LayoutSection(tp=1, pp=2, dp=4, num_microbatches=8)
    assert config.model == JobConfig().model


def test_whole_numbers_stand_for_numbers_but_not_the_other_way_round() -> None:
    assert config_from_toml_text("[optim]\nlr = 1").optim.lr == 1.0
    assert "seq_len is 2.5; expected a whole number of 1 or more" in error_of("[model]\nseq_len = 2.5")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[layout]\ntp = "two"', 'job.toml: layout.tp is "two"; expected a whole number of 1 or more'),
        ("[layout]\ntp = 0", "layout.tp is 0; expected a whole number of 1 or more"),
        ("[layout]\ntp = true", "layout.tp is true; expected a whole number"),
        ("[layout]\nttp = 2", 'unknown key "ttp" in [layout]; did you mean "tp"? allowed: tp, pp, dp, num_microbatches, schedule'),
        ("[layot]\ntp = 2", 'unknown section "layot"; did you mean "layout"? allowed: job, layout, model'),
        ("layout = 3", "layout is 3; expected a section: write [layout]"),
        ("[layout]\nnum_microbatches = 1", "layout.num_microbatches is 1 for 2 replicas"),
        ("[layout]\npp = 6\n[model]\nnum_layers = 4", "the model has 4 layers"),
        ('[job]\ndtype = "fp32"', 'job.dtype is "fp32"; expected one of "float32", "float64"'),
        ("[job]\nbucketed = 1", "job.bucketed is 1; expected true or false"),
        ("[job]\niterations = nan", "job.iterations is nan"),
        ("[job]\nseed = 2020-01-01", 'job.seed is "2020-01-01"'),
        ("[optim]\nlr = inf", "optim.lr is inf; expected a number above 0"),
        ("[optim]\nlr = 0.0", "optim.lr is 0.0; expected a number above 0"),
        ("[optim]\nbeta1 = 1.0", "optim.beta1 is 1.0; expected a number of 0 or more and below 1"),
        ("[pace]\nnoise = -0.1", "pace.noise is -0.1"),
        ("[detect]\nmin_slowdown = 1.0", "detect.min_slowdown is 1.0; expected a number above 1"),
        ("[detect]\nconfirm_iterations = 2", "below detect.suspect_iterations, 3"),
        ("[run]\nstep_deadline_s = 0", "run.step_deadline_s is 0; expected a number above 0"),
        ("fault = 3", "write [[fault]]"),
        ('[[fault]]\ntext = "slwo rank 5 x2 from 3"', "allowed kinds"),
        ('[[fault]]\ntext = "slow rank 8 x2 from 3"', "hits rank 8, but the layout has ranks 0..7"),
        ('[[fault]]\ntext = "slow rank 5 x2 from 72"', "begins after the last of job.iterations = 72"),
        ("[job]\niterations = \n", "at line 2"),
        ("[job]\n[job]\n", "not valid TOML"),
    ],
)
def test_one_line_names_the_value_what_is_allowed_and_the_place(text: str, said: str) -> None:
    assert said in error_of(text)


@given(st.sampled_from(KEYS), st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=2)))
def test_any_value_of_any_key_is_taken_or_refused_by_name(key: tuple[str, str], value: object) -> None:
    section, name = key
    try:
        config = config_from_dict({section: {name: value}})
    except UserError as error:
        assert str(error).startswith("job.toml: ")
        assert name in str(error) or section == "layout" or name == "num_layers"
    else:
        assert getattr(getattr(config, section), name) == value
        assert config_from_toml_text(config_to_toml(config)) == config


@pytest.mark.parametrize(("section", "key"), KEYS)
def test_every_key_has_a_default_within_what_is_allowed(section: str, key: str) -> None:
    default = getattr(getattr(JobConfig(), section), key)
    assert config_from_dict({section: {key: default}}) == JobConfig()
    assert allowed(section, key)


def test_faults_round_trip_through_the_file() -> None:
    faults = (parse_fault("slow rank 5 x1.8 from 20 to 60"), parse_fault("stop rank 1 from 12s"))
    config = override(JobConfig(), fault=faults)
    assert config_from_toml_text(config_to_toml(config)).fault == faults
    assert msgspec.json.decode(msgspec.json.encode(config), type=JobConfig) == config
    by_key = '[[fault]]\nkind = "slow"\nrank = 5\nfactor = 1.8\nfrom = 20\nto = 60\n[[fault]]\ntext = "stop rank 1 from 12s"\n'
    assert config_from_toml_text(by_key).fault == faults


def test_override_replaces_what_is_given_and_checks_it() -> None:
    config = override(JobConfig(), job={"iterations": 9, "seed": None}, pace={"kind": "none"})
    assert config.job == JobSection(iterations=9)
    assert config.pace.kind == "none"
    assert config.detect == DetectSection()
    with pytest.raises(UserError, match=r"^command line: job.iterations is 0; expected"):
        override(JobConfig(), job={"iterations": 0})
    with pytest.raises(UserError, match="hits rank 5, but the layout has ranks 0..3"):
        override(JobConfig(), fault=[parse_fault("slow rank 5 x2 from 3")], layout={"tp": 1})


def test_the_layout_is_the_grid() -> None:
    layout = layout_of(config_from_toml_text("[layout]\ntp = 1\npp = 2\ndp = 3\nnum_microbatches = 7\n[model]\nnum_layers = 5\n"))
    assert layout.world_size == 6
    assert layout.split == (3, 2, 2)
    assert [stage.num_layers for stage in layout.replicas[0].stages] == [3, 2]


def test_a_file_that_cannot_be_read_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist; give the path"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(UserError, match="is a folder"):
        load_config(tmp_path)
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        load_config(tmp_path / "bad.toml")
    with pytest.raises(UserError, match="cannot be read"):
        load_config(tmp_path / "bad.toml" / "job.toml")
    (tmp_path / "job.toml").write_text("[job]\nseed = 3\n\n[layout]\ntp =\n")
    with pytest.raises(UserError, match=r"job.toml is not valid TOML: .*line 5"):
        load_config(tmp_path / "job.toml")


def test_respawn_needs_recovery() -> None:
    with pytest.raises(UserError, match=r'run\.respawn is true, but run\.on_death is "end".*set run\.on_death = "recover"'):
        config_from_toml_text("[run]\nrespawn = true\n")
    assert config_from_toml_text('[run]\nrespawn = true\non_death = "recover"\n').run.respawn
