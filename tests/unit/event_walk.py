"""An event-driven simulation of schedules, written apart from the walk: stages are processes, data are messages in one queue."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Hashable, Mapping, Sequence

Site = Hashable
Visit = tuple[Site, int]  # where, and which of this micro-batch's visits there


def split_word(word: str) -> tuple[str, int, int]:
    """Kind, micro-batch and chunk of a word such as 1F7."""
    at = next(i for i, letter in enumerate(word) if letter in "FBW")
    return word[at], int(word[at + 1 :]), int(word[:at] or 0)


def word_of(kind: str, microbatch: int, chunk: int) -> str:
    return f"{chunk or ''}{kind}{microbatch}"


def simulate(
    texts: Mapping[Site, str], paths: Mapping[int, Sequence[Visit]], seconds: Callable[[Site, str], float], hop: Callable[[int, int], float]
) -> dict[tuple[Site, str], float]:
    """When each (site, word) ends; `hop(m, k)` is the time of micro-batch m between its visits k and k + 1, either way."""
    queue: list[tuple[float, int, Site, str, str]] = []  # time, serial, site, "ends" or "comes", word
    words = {site: text.split() for site, text in texts.items()}
    inbox: dict[Site, set[str]] = {site: set() for site in texts}
    busy = dict.fromkeys(texts, False)
    ends: dict[tuple[Site, str], float] = {}
    serial = 0

    def post(time_s: float, site: Site, what: str, word: str) -> None:
        nonlocal serial
        serial += 1
        heapq.heappush(queue, (time_s, serial, site, what, word))

    for microbatch, path in paths.items():
        post(0.0, path[0][0], "comes", word_of("F", microbatch, path[0][1]))
    while queue:
        now, _, site, what, word = heapq.heappop(queue)
        if what == "comes":
            inbox[site].add(word)
        else:
            ends[site, word], busy[site] = now, False
            kind, microbatch, chunk = split_word(word)
            path = paths[microbatch]
            k = path.index((site, chunk))
            if kind == "F" and k + 1 < len(path):
                there, number = path[k + 1]
                post(now + hop(microbatch, k), there, "comes", word_of("F", microbatch, number))
            elif kind == "F":
                post(now, site, "comes", word_of("B", microbatch, chunk))
            elif kind == "B":
                post(now, site, "comes", word_of("W", microbatch, chunk))
                if k:
                    there, number = path[k - 1]
                    post(now + hop(microbatch, k - 1), there, "comes", word_of("B", microbatch, number))
        if not busy[site] and words[site] and words[site][0] in inbox[site]:
            following = words[site].pop(0)
            busy[site] = True
            post(now + seconds(site, following), site, "ends", following)
    return ends


def random_texts(rng: random.Random, sites: Sequence[Site], paths: Mapping[int, Sequence[Visit]], split_backward: bool) -> dict[Site, str]:
    """A random schedule that can run: drawn by running random actions that can be run, one after the other."""
    waits_for: dict[tuple[Site, str], list[tuple[Site, str]]] = {}
    for m, path in paths.items():
        for k, (site, chunk) in enumerate(path):
            waits_for[site, word_of("F", m, chunk)] = [(path[k - 1][0], word_of("F", m, path[k - 1][1]))] if k else []
            after = path[k + 1] if k + 1 < len(path) else None
            waits_for[site, word_of("B", m, chunk)] = [(site, word_of("F", m, chunk))] + ([(after[0], word_of("B", m, after[1]))] if after else [])
            if split_backward:
                waits_for[site, word_of("W", m, chunk)] = [(site, word_of("B", m, chunk))]
    texts: dict[Site, list[str]] = {site: [] for site in sites}
    done: set[tuple[Site, str]] = set()
    while len(done) < len(waits_for):
        pick = rng.choice([action for action, needed in waits_for.items() if action not in done and done.issuperset(needed)])
        done.add(pick)
        texts[pick[0]].append(pick[1])
    return {site: " ".join(words) for site, words in texts.items()}


def plain_paths(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> dict[int, list[Visit]]:
    """Every micro-batch through all stages, chunk after chunk."""
    return {m: [(row % num_stages, row // num_stages) for row in range(num_stages * num_chunks)] for m in range(num_microbatches)}
