"""Labels make room for each other: the placer against boxes worked out by hand."""

import pytest

from profiler.figures import place
from profiler.figures.place import ABOVE, RIGHT, Box, Frame, Placer, apart


def frame(width: float = 400) -> Frame:
    """A plot of ``width`` × 300 with margins of 50; x and y from 0 to 10."""
    return Frame(width, 300, 50, 50, 50, 50, (0, 10), (0, 10))


def test_frame_maps_data_to_pixels():
    assert frame().xy(0, 0) == (50, 250)
    assert frame().xy(10, 10) == (350, 50)
    assert Frame(400, 300, 50, 50, 50, 50, (0, 2), (0, 1), x_log=True).xy(10, 0.5) == (200, 150)


def test_a_free_label_takes_the_first_side():
    spot = Placer([frame()]).put("abc", 5, 5, 10, distance=8, sides=(RIGHT, ABOVE))
    assert (spot.dx, spot.dy, spot.xanchor, spot.yanchor) == (8, 0, "left", "middle")
    assert not spot.far


def test_labels_of_one_point_do_not_overlap():
    placer = Placer([frame(), frame(800)])
    placer.avoid_point(5, 5, 6)
    spots = [placer.put(f"label {i}", 5, 5, 12) for i in range(6)]
    assert all(spots)
    for i in range(2):
        boxes = [s.boxes[i] for s in spots]
        assert not any(a.overlaps(b) for k, a in enumerate(boxes) for b in boxes[k + 1:])


def test_a_label_stays_inside_and_off_the_line():
    placer = Placer([frame()])
    placer.avoid_line([0, 10], [5, 5])
    spot = placer.put("on the line", 9.9, 5, 12)
    assert spot.boxes[0].inside(frame().area)
    assert not spot.boxes[0].hit_by(50, 150, 350, 150)


def test_nothing_free_gives_none():
    placer = Placer([frame()])
    placer.avoid_box([frame().area])
    assert placer.put("no room", 5, 5, 12) is None


def test_a_position_must_be_free_on_every_canvas():
    wide, narrow = frame(800), frame(200)
    placer = Placer([narrow, wide])
    placer.avoid_point(7, 5, 10)  # 28 px to the right on the narrow canvas, 140 px on the wide one
    assert Placer([wide]).put("abcd", 5, 5, 12, sides=(RIGHT,)).dx == 8
    assert placer.put("abcd", 5, 5, 12, distance=8, reach=12, sides=(RIGHT,)) is None


def test_it_is_deterministic():
    def run():
        placer = Placer([frame()])
        return [placer.put(f"n{i}", 5 + i / 5, 5, 12) for i in range(8)]

    assert run() == run()


@pytest.mark.parametrize("segment, hit", [((0, 0, 20, 20), True), ((0, 15, 20, 15), True), ((0, 0, 20, 5), False),
                                          ((12, 0, 12, 30), True), ((25, 0, 25, 30), False), ((11, 11, 12, 12), True)])
def test_a_segment_hits_a_box(segment, hit):
    assert Box(10, 10, 20, 20).hit_by(*segment) is hit


def test_wrapping_keeps_lines_short_and_even():
    text = "one two three four five six seven eight nine ten"
    wrapped = place.wrap(text, 10, 120)
    lines = wrapped.split("<br>")
    assert " ".join(lines) == text
    assert all(place.text_width(line, 10) <= 120 for line in lines)
    widths = [place.text_width(line, 10) for line in lines]
    assert min(widths) > 0.5 * max(widths)


def test_tags_do_not_count_and_superscripts_are_small():
    assert place.text_width("<b>abc</b>", 10) == place.text_width("abc", 10)
    assert place.text_width("N<sup>1111111111</sup>", 10) == pytest.approx(place.text_width("N1111111", 10))


def test_apart_pools_what_would_overlap_and_keeps_order_and_bounds():
    assert apart([50, 10], [10, 10], 0, 100) == [50, 10]  # free: as asked
    assert apart([50, 50], [10, 10], 0, 100) == [45, 55]  # a block around the mean
    assert apart([50, 52, 90], [10, 20, 10], 0, 100) == [43.5, 58.5, 90]  # tops asked for: 45 and 42 − 10, mean 38.5
    assert apart([98, 99], [10, 10], 0, 100) == [85, 95]  # pushed back inside
    assert apart([1, 2], [10, 10], 0, 100) == [5, 15]


def test_a_column_stands_beside_its_points_in_their_order():
    placer = Placer([Frame(800, 600, 100, 100, 50, 50, (0, 10), (0, 10))])
    spots = placer.column([("low", 5, 5.0), ("high", 5, 5.1)], 15)
    low, high = (spot.boxes[0] for spot in spots)
    assert high.y1 <= low.y0 + 1 and low.x0 == high.x0 > placer.frames[0].xy(5, 5)[0]
    assert not low.overlaps(high)
    crowded = Placer([Frame(800, 600, 100, 100, 50, 50, (0, 10), (0, 10))])
    crowded.avoid_box([Box(400, 0, 700, 600)])
    assert all(spot.boxes[0].x1 < 400 for spot in crowded.column([("low", 5, 5.0), ("high", 5, 5.1)], 15))
