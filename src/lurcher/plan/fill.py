"""What a pipeline's fill and drain cost at least, however its layers are cut: the lemma behind the planner's bound.

Let stage s of P take x_s seconds for forward and backward of a micro-batch, C = sum x_s. Every path through the schedule's
dependencies is a lower bound of its makespan T. In 1F1B, stage s runs P - s - 1 forwards ahead, so with m >= P - s the path
"first micro-batch down to the last stage and back to s, then s without a pause to its last forward, then that micro-batch down
and back to the start" gives

    (a)  T >= C + (m - P + s) x_s + sum_{j > s} x_j        for every stage s

and in every schedule that runs micro-batches in order

    (b)  T >= C + (m - 1) max(f_s, b_s),        (c)  T >= m x_s,        (d)  GPipe: T >= C + (m - 1) x_s.

Each path crosses every border at least twice. Weights y_s >= 0 for these inequalities with sum Y prove T Y >= sum_s v_s x_s
for all speeds v_s whose coefficients they reach; the functions below are the best such weights, by back-substitution.
"""

from __future__ import annotations

UNPROVEN = ("interleaved", "zb_h1")
"""Schedules made to shrink the bubble: for them only (c) is counted, and the way of one micro-batch."""


def least_units(schedule: str, num_stages: int, num_microbatches: int, backward_part: float, way: float = 1.0) -> float:
    """The least makespan of `num_microbatches` through `num_stages` equally fast stages, in times of an even stage's micro-batch.

    m + P - 1 for GPipe and, from m = P + 1 on, for 1F1B; less where 1F1B's warm-up can hide a long first stage.
    `backward_part` is b / (f + b) of every stage, at least (of f if that is larger), for (b). `way` is what of a
    micro-batch's work lies on its way down and back: all but the weight gradients, where they are apart.
    """
    m, stages = num_microbatches, num_stages
    simple = max(float(m), way * stages)
    if schedule in UNPROVEN or m == 0:
        return simple if m else 0.0
    if schedule == "gpipe":
        return float(m + stages - 1)
    part = max(backward_part, 1.0 - backward_part)
    # y_s = (1 - Y - S_s) / k_s with S_s the weights of the earlier (a) paths: linear in Y, so solve for Y.
    free, before = 0.0, 0.0  # Y = free * (1 - Y); before: S_s / (1 - Y)
    for s in range(stages):
        slack = m - stages + s
        if slack > 0:
            y = (1.0 - before) / slack
            before += y
        elif m > 1:
            y = (1.0 - before) / (part * (m - 1))
        else:
            return simple
        if y < 0:
            return simple
        free += y
    return max(simple, stages * (1.0 + free) / free)


def counted_speed(work: float, pipeline_s: float) -> float:
    """Speed below which a stage must be counted as if it had this one, for `(m + P - 1) w <= V T` to hold.

    Lemma: a replica whose P stages have speeds v_s >= 2 w / T, V their sum, and that runs m micro-batches of `work` w in
    `pipeline_s` T has (m + P - 1) w <= V T, in 1F1B and in GPipe. Proof: suppose not, so Y := V / (m + P - 1) < w / T. As
    V >= 2 P w / T, m > P + 1, so (a) holds for every stage with k_s := m - P + s > 1. Put y_s := (v_s - Y - S_s) / k_s,
    S_s := sum_{j < s} y_j. The weights y_s give every x_s the coefficient v_s, and sum y_s = Y (sum the P definitions). All
    are >= 0: S_{s+1} is the mean of S_s and v_s - Y with weights 1 - 1/k_s and 1/k_s, and v_s - Y > Y; so S would stay above
    Y once it passed it, but S_P = Y. Hence T Y >= sum_s v_s x_s = w, against Y < w / T. GPipe: y_s := (v_s - Y) / (m - 1).
    """
    return 2.0 * work / pipeline_s
