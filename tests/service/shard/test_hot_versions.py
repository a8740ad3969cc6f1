"""Which versions stay in memory: those of groups that are used, and no more than there is room."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from secureps.service.shard.hot_versions import LEAST_SAMPLE, HotVersions


def used(hot: HotVersions[str], **times: int) -> None:
    for group, count in times.items():
        for _ in range(count):
            hot.use(group)


def held(hot: HotVersions[str]) -> list[str]:
    return [hot.versions(group)[v] for group in "abcdef" for v in hot.versions(group)]


def test_without_a_limit_all_is_held() -> None:
    hot = HotVersions[str]()
    assert all(hot.put("a", v, f"a{v}", 1 << 40) for v in range(5))
    assert hot.get("a", 3) == "a3"
    assert hot.get("b", 0) is None
    assert hot.nbytes == 5 << 40


def test_what_is_used_more_stays_and_what_is_used_less_goes() -> None:
    hot = HotVersions[str](30)
    used(hot, a=3, b=1, c=2)
    assert all(hot.put(group, 0, group, 10) for group in "abc")
    used(hot, d=1)
    assert not hot.makes_room("d", 0, 10), "a is used last of all, and more"
    assert not hot.put("d", 0, "d", 10)
    used(hot, d=5)
    assert hot.put("d", 0, "d", 10)
    assert held(hot) == ["b", "c", "d"], "the one that was used longest ago went"
    assert hot.get("b", 0) == "b"
    used(hot, e=3)
    assert hot.put("e", 0, "e", 10)
    assert held(hot) == ["b", "d", "e"]
    assert not hot.put("f", 0, "f", 31), "longer than all the room"


def test_older_versions_of_a_group_go_first() -> None:
    hot = HotVersions[str](20)
    used(hot, a=1, b=9)
    assert hot.put("a", 1, "a1", 10)
    assert hot.put("b", 1, "b1", 10)
    assert hot.put("a", 2, "a2", 10)
    assert held(hot) == ["a2", "b1"]
    assert not hot.put("a", 1, "a1", 10), "nor comes one in place of a newer one"
    assert hot.put("a", 2, "again", 15) is False, "b is used more"
    hot.drop("b", 1)
    assert hot.put("a", 2, "again", 15)
    assert (held(hot), hot.nbytes) == (["again"], 15)


def test_what_is_pinned_comes_and_stays() -> None:
    hot = HotVersions[str](30)
    used(hot, b=9)
    assert hot.put("b", 0, "b", 20)
    assert hot.put("a", 0, "a", 20, pinned=True)
    used(hot, c=90)
    assert not hot.put("c", 0, "c", 20)
    assert held(hot) == ["a"]
    hot.drop("a", 0)
    hot.drop("a", 0)
    assert hot.nbytes == 0


def test_a_scan_pushes_nothing_out_that_is_used_twice() -> None:
    hot = HotVersions[str](10)
    for group in range(10):
        used(hot, **{f"hot{group}": 2})
        hot.put(f"hot{group}", 0, "hot", 1)
    for group in range(1000):
        used(hot, **{f"cold{group}": 1})
        assert not hot.put(f"cold{group}", 0, "cold", 1)
        if group % 25 == 0:
            used(hot, **{f"hot{n}": 2 for n in range(10)})


def test_what_was_hot_is_forgotten() -> None:
    hot = HotVersions[str](1)
    used(hot, a=LEAST_SAMPLE // 2)
    hot.put("a", 0, "a", 1)
    tries = 0
    while not hot.put("b", 0, "b", 1):
        used(hot, **{f"x{n}": 1 for n in range(LEAST_SAMPLE // 4)}, b=1)
        tries += 1
        assert tries < 20
    assert held(hot) == ["b"]
    assert len(hot._uses) < LEAST_SAMPLE, "groups that are used once are not counted for ever"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1, 9)), max_size=60))
def test_there_is_never_more_than_there_is_room_for(puts: list[tuple[int, int, int]]) -> None:
    hot = HotVersions[int](20)
    for group, version, size in puts:
        hot.use(str(group))
        was = hot.get(str(group), version)
        takes = hot.makes_room(str(group), version, size)
        assert was is not None or not takes or hot.nbytes + size <= 20, "before it is read"
        assert was is not None or takes == hot.put(str(group), version, size, size)
        every = [n for g in range(6) for n in hot.versions(str(g)).values()]
        assert sum(every) == hot.nbytes <= 20


def test_under_zipf_most_of_what_is_hot_is_held() -> None:
    """A tenth of 1,000 groups has room; an ideal cache would have what is asked for most."""
    rng, hot, hits = np.random.default_rng(1), HotVersions[bool](100), 0
    weights = 1 / np.arange(1, 1001) ** 1.1
    asked = [str(each) for each in rng.choice(1000, 20_000, p=weights / weights.sum())]
    for group in asked[:5000]:
        hot.use(group)
        if hot.get(group, 0) is None:
            hot.put(group, 0, True, 1)
    for group in asked[5000:]:
        hot.use(group)
        found = hot.get(group, 0)
        hits += found is not None
        if found is None:
            hot.put(group, 0, True, 1)
    best = sum(n for _, n in Counter(asked[5000:]).most_common(100))
    assert hits > 0.85 * best
