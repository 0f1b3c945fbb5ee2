"""Problem files: what they may say, and one clear line for each way to say it wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_run import SLOW_RANK, SLOWDOWN, write_run

from lurcher.errors import UserError
from lurcher.model.price import price
from lurcher.plan.measured import problem_of_run
from lurcher.plan.problem import load_problem, problem_from_toml

LAYOUT = "[layout]\nnum_layers = 8\nnum_microbatches = 16\ntp = 2\npp = 2\ndp = 2\n"
RATES = "[rates]\nforward_s = 0.1\nbackward_s = 0.2\nranks_per_node = 2\n"
REPLICA = """[layout]
num_layers = 4
num_microbatches = 4
[rates]
forward_s = 0.1
backward_s = 0.2
[[replica]]
microbatches = 4
"""


def test_a_grid_with_faults() -> None:
    faults = "[[fault]]\nranks = [5]\nslowdown = 1.8\n[[fault]]\nnodes = [0]\nslowdown = 1.2\n[[fault]]\nranks = [3]\ndead = true\n"
    links = "[[fault]]\nlink = [0, 2]\nslowdown = 4\n[[fault]]\nlink = [3]\nslowdown = 2\n[[fault]]\nrank_link = [1]\nslowdown = 3\n"
    problem = problem_from_toml(LAYOUT + RATES + faults + links)
    assert problem.rates.slowdown == {5: 1.8, 0: 1.2, 1: 1.2}
    assert problem.rates.dead == (3,)
    assert [(link.a, link.b, link.slowdown, link.kind) for link in problem.rates.links] == [(0, 2, 4, "node"), (3, -1, 2, "node"), (1, -1, 3, "rank")]
    assert problem.causes == ("compute", "communication")
    assert problem.num_atoms == 32
    assert problem.layout.split == (8, 8)


def test_replicas_one_by_one() -> None:
    problem = problem_from_toml(REPLICA + "stages = [[0, 1], [2]]\nlayers = [3, 1]\nshares = [[2, 1], [1]]\n")
    (replica,) = problem.layout.replicas
    assert [stage.ranks for stage in replica.stages] == [(0, 1), (2,)]
    assert [stage.num_layers for stage in replica.stages] == [3, 1]
    assert replica.stages[0].shares == (2, 1)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (RATES, "section [layout] is missing"),
        (LAYOUT, "section [rates] is missing"),
        (LAYOUT + RATES + "[layouts]\n", 'unknown section "layouts"; did you mean "layout"?'),
        (LAYOUT + "typ = 2\n" + RATES, 'unknown key "typ" in layout; did you mean "tp"?'),
        (LAYOUT + RATES + "forward = 1\n", 'unknown key "forward" in rates; did you mean "forward_s"?'),
        (LAYOUT + "[rates]\nforward_s = 1\n", "rates.backward_s is missing"),
        (LAYOUT + "[rates]\nforward_s = 0\nbackward_s = 1\n", "both must be above 0"),
        (LAYOUT + RATES + "link_bytes_per_s = -1\n", "rates.link_bytes_per_s is -1"),
        (LAYOUT + RATES + "launch_s = nan\n", "rates.launch_s is nan"),
        (LAYOUT + RATES + "launch_s = 'x'\n", "rates.launch_s: Expected `float`, got `str`"),
        (LAYOUT + RATES + "slowdown = {}\n", "rates.slowdown is not set here"),
        (LAYOUT.replace("num_microbatches = 16", "num_microbatches = 1") + RATES, "each needs one"),
        (LAYOUT.replace("num_layers = 8", "num_layers = 1") + RATES, "every stage needs one"),
        (LAYOUT + "schedule = 'fifo'\n" + RATES, "layout.schedule is 'fifo'; allowed are"),
        (LAYOUT + "standby = [3]\n" + RATES, "rank 3 stands 2 times in the layout"),
        (LAYOUT + RATES + "[[fault]]\nranks = [8]\nslowdown = 2\n", "fault 0 hits rank 8, but the layout has ranks 0..7"),
        (LAYOUT + RATES + "[[fault]]\nnodes = [4]\nslowdown = 2\n", "fault 0 hits node 4, but the layout has nodes 0..3"),
        (LAYOUT + RATES + "[[fault]]\nranks = [1]\n", "must say either slowdown = X"),
        (LAYOUT + RATES + "[[fault]]\nranks = [1]\nslowdown = 2\ndead = true\n", "must say either slowdown = X"),
        (LAYOUT + RATES + "[[fault]]\nranks = [1]\nslowdown = -2\n", "above 0: a rank that does nothing is dead = true"),
        (LAYOUT + RATES + "[[fault]]\nslowdown = 2\n", "it names none"),
        (LAYOUT + RATES + "[[fault]]\nranks = [1]\nlink = [0, 1]\nslowdown = 2\n", "it names 2"),
        (LAYOUT + RATES + "[[fault]]\nlink = [0, 1]\ndead = true\n", "a dead one is a slowdown of 1000"),
        (LAYOUT + RATES + "[[fault]]\nlink = [1, 1]\nslowdown = 2\ncause = 'gremlins'\n", "fault 0.cause"),
        (LAYOUT + RATES + "[[fault]]\nranks = [0, 1, 2, 3, 4, 5, 6, 7]\ndead = true\n", "all 8 working ranks are dead"),
        (LAYOUT + RATES + "[switch]\nborder = 1\n", 'unknown key "border" in switch; did you mean "border_s"?'),
        (LAYOUT + RATES + "fault = 3\n", "fault"),
        ("layout = 3\n" + RATES, "layout is no section"),
        ("[layout\n", "is not valid TOML"),
        (LAYOUT + RATES + REPLICA[REPLICA.index("[[replica]]") :] + "stages = [[0]]\nlayers = [8]\n", "both say who holds what"),
        (REPLICA + "stages = [[0, 1], [1]]\nlayers = [3, 1]\n", "rank 1 stands 2 times"),
        (REPLICA + "stages = [[0], [1]]\nlayers = [3]\n", "2 stages but 1 counts of layers"),
        (REPLICA + "stages = [[0], [1]]\nlayers = [3, 2]\n", "holds layers 0..4 of 4"),
        (REPLICA + "stages = [[0], []]\nlayers = [3, 1]\n", "stage 1 has no ranks"),
        (REPLICA + "stages = [[0], [1]]\nlayers = [3, 1]\nshares = [[1]]\n", "shares for 1"),
        (
            REPLICA.replace("microbatches = 4\n", "microbatches = 3\n", 2).replace("num_microbatches = 3", "num_microbatches = 4")
            + "stages = [[0]]\nlayers = [4]\n",
            "sum to 3",
        ),
    ],
)
def test_bad_problems_are_one_clear_line(text: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        problem_from_toml(text, source="p.toml")
    message = str(caught.value)
    assert message.startswith("p.toml")
    assert line in message
    assert "\n" not in message


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load_problem(tmp_path / "none.toml")


def test_a_run_directory_is_a_problem(tmp_path: Path) -> None:
    problem = problem_of_run(write_run(tmp_path / "run"))
    assert problem.rates.slowdown == {SLOW_RANK: pytest.approx(SLOWDOWN, rel=0.05)}
    assert problem.causes == ("compute",)
    assert problem.rates.backward_s / problem.rates.forward_s == pytest.approx(2.0, rel=0.1)
    assert problem.rates.node(0) == 0 and problem.rates.node(7) == 1
    healthy = problem_of_run(write_run(tmp_path / "healthy", healthy=True))
    assert healthy.rates.slowdown == {} and healthy.causes == ()
    # the price of the layout without faults is the measured healthy iteration
    assert price(problem.layout, healthy.rates).iteration_s == pytest.approx(price(healthy.layout, healthy.rates).iteration_s)


def test_a_run_that_cannot_be_planned_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no verdict.json"):
        problem_of_run(write_run(tmp_path / "run", with_verdict=False))
