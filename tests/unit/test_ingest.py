"""Files as they really are: restarts, ranks, cut ends, other programs' lines between, binary and mixed content. Right, or refused in one clear line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_ingest_formats import FORMS, deepspeed, json_lines, lingua, megatron_ms, modded_nanogpt, nanotron, torchtitan, written

from lurcher.errors import UserError
from lurcher.ingest import FORMATS, Log, read_log, read_logs

INDEX = list(range(1, 31))
STEADY = [2.0 + 0.01 * (i % 2) for i in INDEX]


def refused(path: Path, *parts: str, **options: str) -> str:
    """The one line of a refusal; it names the file and holds `parts`."""
    with pytest.raises(UserError) as caught:
        read_log(path, **options)
    text = str(caught.value)
    assert "\n" not in text and str(path) in text
    for part in parts:
        assert part in text, text
    return text


def noted(log: Log, *parts: str) -> None:
    for part in parts:
        assert any(part in note for note in log.notes), (part, log.notes)


# a log as it grows


def test_other_lines_between_change_nothing(tmp_path: Path) -> None:
    plain = read_log(written(tmp_path / "a", megatron_ms(INDEX, STEADY)))
    noise = [
        "time (ms) | forward-compute: 12.3",
        "saving checkpoint at iteration      10 to /x",
        "",
        "\x00\x00",
        "validation loss at iteration 10 | lm loss value: 2.1 |",
        "é" * 50,
    ]
    lines = [part for line in megatron_ms(INDEX, STEADY) for part in (*noise, line)]
    log = read_log(written(tmp_path / "b", lines))
    assert log.rows.tobytes() == plain.rows.tobytes()


def test_a_progress_bar_on_the_same_line(tmp_path: Path) -> None:
    lines = [f"\r 10%|#  | 1/10\r 20%|## | 2/10\r{line}" for line in nanotron(INDEX, STEADY)]
    assert read_log(written(tmp_path / "a", lines)).rows["index"].tolist() == INDEX


@pytest.mark.parametrize("name", [name for name in FORMS if FORMS[name][0] not in ("csv", "json", "jsonl", "workers")])
def test_a_restart_repeats_iterations_and_the_later_ones_count(name: str, tmp_path: Path) -> None:
    form, printed = FORMS[name]
    first, second = list(range(100, 150)), list(range(130, 180))
    lines = [*printed.lines(first, [2.0] * 50), "Traceback ...", "starting again", *printed.lines(second, [3.0] * 50)]
    log = read_log(written(tmp_path / "a", lines))
    assert log.rows["index"].tolist() == list(range(100, 180))
    assert log.restarts == (130,)
    noted(log, "20 rows repeat an earlier iteration", "the later ones count")
    if form not in ("torchtitan", "deepspeed"):  # there the scale comes from stamps, which these made-up lines turn back
        got = log.rows["duration_s"]
        assert np.nanmax(np.abs(got - np.where(log.rows["index"] < 130, 2.0, 3.0))) < 0.02


def test_shuffled_rows_are_put_in_order(tmp_path: Path) -> None:
    rows = [f"{i},{1 + i / 100}" for i in INDEX]
    log = read_log(written(tmp_path / "a", ["iteration,duration_s", *rows[20:], *rows[:10], *rows[10:20]]))
    assert log.rows["index"].tolist() == INDEX
    assert log.rows["duration_s"].tolist() == [1 + i / 100 for i in INDEX]
    noted(log, "put in the order")
    assert log.restarts == ()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=1, max_size=60))
def test_any_order_and_any_repeats(data: list[tuple[int, int]], tmp_path: Path) -> None:
    """Against a dictionary: the last value given for a pair holds, and pairs come sorted."""
    path = written(tmp_path / "a", ["iteration,rank,duration_s", *(f"{i},{r},{n + 1}" for n, (i, r) in enumerate(data))])
    log = read_log(path)
    expected = {pair: float(n + 1) for n, pair in enumerate(data)}
    assert [(int(row["index"]), int(row["rank"])) for row in log.rows] == sorted(expected)
    assert log.rows["duration_s"].tolist() == [expected[pair] for pair in sorted(expected)]
    assert log.num_ranks == len({r for _, r in data})
    assert any("repeat" in note for note in log.notes) == (len(expected) < len(data))
    backwards, last = set(), {}
    seen: set[tuple[int, int]] = set()
    for i, r in data:
        if r in last and i < last[r] and (i, r) in seen:
            backwards.add(i)
        last[r] = i
        seen.add((i, r))
    assert log.restarts == tuple(sorted(backwards))


@pytest.mark.parametrize("prefix", ["[rank{}]:", "[default{}]:", "{}: "])
def test_launchers_prefixes_are_ranks_where_several_print(prefix: str, tmp_path: Path) -> None:
    lines = [prefix.format(r) + line for line in torchtitan(INDEX, STEADY) for r in (0, 3)]
    log = read_log(written(tmp_path / "a", lines))
    assert log.num_ranks == 2 and "rank" in log.columns
    assert log.rows["rank"].tolist() == [0, 3] * 30
    assert np.nanmax(np.abs(log.rows["duration_s"] - np.repeat(STEADY, 2))) < 0.02


def test_one_process_that_prints_is_no_rank(tmp_path: Path) -> None:
    """After a restart on fewer hosts another one may be the last, and so the printing one: still one series."""
    lines = ["[default7]:" + line for line in megatron_ms(INDEX, STEADY)] + [
        "[default3]:" + line for line in megatron_ms([29, 30, 31, 32], [2.5] * 4)
    ]
    log = read_log(written(tmp_path / "a", lines))
    assert log.num_ranks == 1 and "rank" not in log.columns and not log.rows["rank"].any()
    assert log.rows["index"].tolist() == list(range(1, 33)) and log.restarts == (29,)


def test_unusable_durations_are_kept_as_unknown_and_counted(tmp_path: Path) -> None:
    rows = ["1,1.5", "2,0", "3,-4", "4,nan", "5,", "6,inf", "7,2.5"]
    log = read_log(written(tmp_path / "a", ["iteration,duration_s", *rows]))
    assert log.rows["index"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert np.isnan(log.rows["duration_s"]).tolist() == [False, True, True, True, True, True, False]
    noted(log, "2 of 7 durations are zero or negative (first: line 3)", "3 of 7 durations are missing or not a number (first: line 5)")
    refused(written(tmp_path / "b", ["iteration,duration_s", "1,0", "2,nan"]), "none of 2 iterations", "line 2")


def test_megatron_says_its_interval_and_its_batch_size(tmp_path: Path) -> None:
    index = list(range(100, 3100, 100))
    lines = megatron_ms(index, [2.0] * 30)
    lines[15:] = [line.replace("global batch size:   128", "global batch size:   256") for line in lines[15:]]
    log = read_log(written(tmp_path / "a", lines))
    assert log.stride == 100
    noted(log, "one line is the mean of 100 iterations", "the global batch size changes 1 times (first at iteration 1600, 128 to 256)")


def test_the_current_rate_of_deepspeed_is_used(tmp_path: Path) -> None:
    log = read_log(written(tmp_path / "a", deepspeed(list(range(10, 310, 10)), STEADY)))
    assert log.stride == 10 and not log.relative
    noted(log, "running mean")


def test_without_stamps_durations_are_relative(tmp_path: Path) -> None:
    lines = [line.replace("[titan] ", "").split(" - ", 1)[1] for line in torchtitan(INDEX, [1.0] * 15 + [1.3] * 15)]
    log = read_log(written(tmp_path / "a", lines))
    noted(log, "only ratios mean something")
    assert log.relative
    duration = log.rows["duration_s"]
    assert np.median(duration[15:]) / np.median(duration[:15]) == pytest.approx(1.3, rel=1e-4)


def test_a_running_clock_with_gaps_and_a_reset(tmp_path: Path) -> None:
    lines = [f"step:{s}/100 train_time:{c}ms step_avg:nanms" for s, c in [(11, 110), (12, 210), (15, 540), (16, 100), (17, 210)]]
    log = read_log(written(tmp_path / "a", lines))
    assert log.rows["index"].tolist() == [11, 12, 15, 16, 17]
    np.testing.assert_allclose(log.rows["duration_s"], [np.nan, 0.1, 0.11, np.nan, 0.11], rtol=1e-12)
    noted(log, "1 lines stand for more than one step", "set back 1 times (first at iteration 16)", "0.001 s")


def test_validation_lines_of_torchtitan_are_left_out(tmp_path: Path) -> None:
    lines = torchtitan(INDEX, STEADY)
    extra = [line.replace("step:", "validate step:") for line in torchtitan(INDEX, [9.0] * 30)]
    log = read_log(written(tmp_path / "a", [x for pair in zip(lines, extra, strict=True) for x in pair]))
    assert log.rows["index"].tolist() == INDEX and np.nanmax(log.rows["duration_s"]) < 2.1


# ends and broken content


def test_a_log_cut_inside_its_last_number(tmp_path: Path) -> None:
    whole = "\n".join(megatron_ms(INDEX, STEADY))
    path = tmp_path / "a"
    path.write_text(whole[: whole.rindex("(ms): ") + 8])  # "(ms): 20" of 2000.0
    log = read_log(path)
    assert log.rows["index"].tolist() == INDEX[:-1]
    noted(log, "1 lines begin like an iteration of megatron and carry no whole time (first: line 30)")


def test_a_table_cut_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("iteration,duration_s\n1,1.50\n2,1.51\n3")
    log = read_log(path)
    assert log.rows["index"].tolist() == [1, 2]
    noted(log, "line 4, the last one, is cut off")
    path.write_text("iteration,duration_s\n1,1.50\n2,1.51\n3,1.5")  # inside the number
    assert read_log(path).rows["index"].tolist() == [1, 2]
    path.write_text("iteration,duration_s\n1,1.50\n2,1.51\n3,1.52")  # only the end of the line is missing
    assert read_log(path).rows["index"].tolist() == [1, 2, 3]


def test_json_lines_cut_at_their_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("\n".join([*json_lines(INDEX, STEADY), '{"step": 31, "duration']))
    log = read_log(path)
    assert log.rows["index"].tolist() == INDEX
    noted(log, "cut off")


def test_empty_and_blank(tmp_path: Path) -> None:
    refused(written(tmp_path / "a", [""]), "is empty")
    (tmp_path / "b").write_bytes(b"")
    refused(tmp_path / "b", "is empty")


def test_binary(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(bytes(range(256)) * 10)
    refused(path, "is binary (byte 0 is 0x00)")
    path.write_bytes(gzip.compress(b"iteration,duration_s\n1,2\n"))
    refused(path, "gzip", "decompress")
    path.write_bytes("iteration,duration_s\r\n1,2\r\n".encode("utf-16"))
    refused(path, "UTF-16")
    path.write_bytes(b"PAR1" + b"\0" * 100)
    refused(path, "not a readable parquet file")
    path.write_bytes(np.random.default_rng(1).integers(1, 256, 5000).astype(np.uint8).tobytes())  # no zero, no text either
    refused(path)


def test_text_without_times(tmp_path: Path) -> None:
    refused(written(tmp_path / "a", ["hello", "step 3 done", "world"]), "none of its 3 lines", "iteration,duration_s")


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", "does not exist")
    with pytest.raises(UserError, match="holds nothing that can be read"):
        read_logs([tmp_path])


def test_mixed_formats(tmp_path: Path) -> None:
    path = written(tmp_path / "a", torchtitan(INDEX, STEADY) + nanotron(INDEX, STEADY))
    refused(path, "mixes formats", "line 1 is torchtitan", "line 31 is nanotron", "--format")
    assert read_log(path, format="nanotron").format == "nanotron"
    assert read_log(path, format="torchtitan").rows["index"].tolist() == INDEX
    table = written(tmp_path / "b", ["iteration,duration_s", "1,2.5", "2,2.5", *megatron_ms(INDEX, STEADY)])
    refused(table, "line 4", "1 columns")
    lines = written(tmp_path / "c", [*json_lines(INDEX, STEADY), *megatron_ms(INDEX, STEADY)])
    refused(lines, "line 31", "no JSON object")


def test_one_program_may_print_two_formats(tmp_path: Path) -> None:
    lines = [line for pair in zip(megatron_ms(INDEX, STEADY), deepspeed(INDEX, [9.0] * 30), strict=True) for line in pair]
    log = read_log(written(tmp_path / "a", lines))
    assert log.format == "megatron" and np.nanmax(log.rows["duration_s"]) < 2.1
    noted(log, "30 lines of deepspeed were left")


def test_formats_by_name(tmp_path: Path) -> None:
    path = written(tmp_path / "a", megatron_ms(INDEX, STEADY))
    with pytest.raises(UserError, match=r"format 'nope' is not known; allowed: megatron, .*lurcher"):
        read_log(path, format="nope")
    for form in set(FORMATS) - {"megatron"}:
        refused(path, format=form)


def test_formats_do_not_take_each_others_lines(tmp_path: Path) -> None:
    for lines, form in ((lingua, "lingua"), (modded_nanogpt, "modded-nanogpt"), (nanotron, "nanotron"), (torchtitan, "torchtitan")):
        log = read_log(written(tmp_path / "a", lines(INDEX, STEADY)))
        assert log.format == form and len(log.rows) == 30
        assert not any("left" in note for note in log.notes)


def test_a_log_may_begin_with_its_configuration(tmp_path: Path) -> None:
    for config in ('{"layers": 4, "name": "a"}', '{\n  "layers": 4\n}', "[1, 2, 3]"):
        log = read_log(written(tmp_path / "a", [config, *megatron_ms(INDEX, STEADY)]))
        assert log.format == "megatron" and len(log.rows) == 30
