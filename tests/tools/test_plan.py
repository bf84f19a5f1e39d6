"""`python -m shapeexec plan`: lengths from files, strategies beside the best ladder."""

import io
import json

import pytest

import shapeexec as sx
from shapeexec.__main__ import main
from shapeexec.tools.planning import plan_lengths, read_lengths

TABLE = "kind,tokens,n\nin,3,2\nout,9,5\nin,30,1\nin,0,4\n"


@pytest.fixture
def file(tmp_path):
    """Writes a file; its path."""

    def write(text, name="lengths.csv"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("text", "name", "options", "counts"),
    [
        ("3\n9\n\n9\n", "lengths.txt", {}, {3: 1, 9: 2}),
        ("9, 3 9\n0", "lengths.txt", {}, {3: 1, 9: 2}),
        ("n\n3\n9\n", "lengths.csv", {}, {3: 1, 9: 1}),
        ("\ufeffn\r\n3\r\n", "lengths.csv", {"column": "n"}, {3: 1}),
        ("\ufeff3\r\n9\r\n", "lengths.txt", {}, {3: 1, 9: 1}),
        ("s\n3\n9\n", "lengths.data", {"column": "s"}, {3: 1, 9: 1}),
        ("s,n\n3,2\n9,0.5\n3,1\n", "lengths.csv", {"count": "n"}, {3: 3, 9: 0.5}),
        (TABLE, "lengths.csv", {"column": "tokens"}, {3: 1, 9: 1, 30: 1}),
        (TABLE, "lengths.csv", {"count": "n", "where": {"kind": "in"}}, {3: 2, 30: 1}),
    ],
)
def test_lengths_are_read(file, text, name, options, counts):
    assert read_lengths(file(text, name), **options) == counts


@pytest.mark.parametrize(
    ("text", "name", "options", "what", "fix"),
    [
        ("3\nx\n", "a.txt", {}, "a.txt:2: 'x' is not a length.", "name the file *.csv"),
        ("3\n-1\n", "a.txt", {}, "a.txt:2: '-1' is not a length.", "an integer of at least 0"),
        ("3.5\n", "a.txt", {}, "a.txt:1: '3.5' is not a length.", "an integer of at least 0"),
        ("0\n", "a.txt", {}, "a.txt holds no length of 1 or more.", "a length on each line"),
        ("", "a.csv", {}, "a.csv is empty.", "first line names the columns"),
        (TABLE, "a.csv", {}, "a.csv has several columns.", "--column tokens"),
        (TABLE, "a.csv", {"column": "size"}, "has no column 'size'.", "name the column"),
        (TABLE, "a.csv", {"column": "kind"}, "a.csv:2: 'in' is not a length.", "integer"),
        ("s,n\n3,x\n", "a.csv", {"count": "n"}, "a.csv:2: 'x' is not a count.", "finite number"),
        ("s,n\n3,nan\n", "a.csv", {"count": "n"}, "'nan' is not a count.", "finite number"),
        ("s,n\n3\n", "a.csv", {"count": "n"}, "a.csv:2 has fewer columns", "mend that line"),
    ],
)
def test_files_that_hold_something_else_are_refused(file, text, name, options, what, fix):
    with pytest.raises(sx.ConfigError) as caught:
        read_lengths(file(text, name), **options)
    assert what in str(caught.value)
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("text", "column", "what"),
    [
        ("", None, "is empty."),
        ("len,len\n3,4\n", "len", "has several columns 'len'."),
    ],
)
def test_a_first_line_without_one_column_of_that_name_is_refused(file, text, column, what):
    with pytest.raises(sx.ConfigError) as caught:
        read_lengths(file(text, "lengths.csv"), column=column)
    assert caught.value.what.endswith(what)


def test_blanks_around_names_and_commas_do_not_matter(file):
    path = file("len , n, kind\n3, 2, in\n", "lengths.csv")
    assert read_lengths(path, column="len", count="n", where={"kind": "in"}) == {3: 2}


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(sx.ConfigError, match=r"cannot be read: .*No such file"):
        read_lengths(tmp_path / "none.txt")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(sx.ConfigError, match=r"cannot be read: .*can't decode"):
        read_lengths(tmp_path / "bytes.txt")


def test_figures_are_those_of_the_strategies():
    counts = {3: 2, 9: 5, 30: 1}
    plan = plan_lengths(counts, graphs=2, compare=["pow2", "fit:1", sx.Linear(10), "exact"])
    assert [row.name for row in plan.rows] == ["exact", "fit:2", "Linear(10)", "pow2", "fit:1"]
    by_name = {row.name: row for row in plan.rows}
    for row in plan.rows:
        assert row.waste == row.strategy.expected_waste(counts)
    assert by_name["pow2"].graphs == 3
    assert by_name["pow2"].most == 7
    assert by_name["fit:2"].strategy == sx.Ladder.fit(counts, 2)
    assert by_name["fit:1"].strategy == sx.Ladder([30])
    assert plan.best.name == "fit:2"
    padded = 2 * 4 + 5 * 16 + 32
    assert by_name["pow2"].padding == pytest.approx((padded - 81) / 81)


@pytest.mark.parametrize(
    ("options", "what", "fix"),
    [
        ({"graphs": 0}, "graphs=0 is not an integer of at least 1.", "1 or more"),
        ({"compare": ["pow3"]}, "compare='pow3' is not a strategy.", "linear:8"),
        ({"compare": ["fit"]}, "compare='fit' is not a fitted ladder.", "fit:16"),
        ({"compare": ["fit:0"]}, "compare='fit:0' is not a fitted ladder.", "fit:16"),
    ],
)
def test_options_that_cannot_work_are_refused(options, what, fix):
    with pytest.raises(sx.ConfigError) as caught:
        plan_lengths([3, 4], **options)
    assert what in str(caught.value)
    assert fix in caught.value.fix


def test_a_length_past_the_last_bucket_is_told():
    with pytest.raises(sx.BucketOverflowError, match="size=9 is past the last bucket"):
        plan_lengths([3, 9], compare=["ladder:4,8"])


def test_the_command_prints_writes_and_draws(file, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out, plot = tmp_path / "new" / "plan.json", tmp_path / "new" / "plan.png"
    arguments = ["--count", "n", "--where", "kind=in", "--graphs", "2", "--compare", "pow2"]
    call = ["plan", str(file(TABLE)), *arguments, "--json", str(out), "--plot", str(plot)]
    assert main(call) == 0
    assert capsys.readouterr().out == (
        "3 lengths of 2 sizes, 3 to 30\n"
        "strategy  graphs  padding / data  padding / all  most for one\n"
        "fit:2          2            0.0%           0.0%             0\n"
        "pow2           2           11.1%          10.0%             2\n"
        "\n"
        "buckets=sx.Ladder((3, 30))\n"
    )
    (fitted, pow2) = json.loads(out.read_text())["rows"]
    assert (fitted["buckets"], fitted["waste"], pow2["graphs"]) == ([3, 30], 0, 2)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_command_reads_standard_input(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("3\n9\n"))
    assert main(["plan", "-", "--graphs", "1"]) == 0
    assert "buckets=sx.Ladder((9,))" in capsys.readouterr().out


def test_the_command_tells_bad_input(file, capsys):
    assert main(["plan", str(file(TABLE)), "--where", "kind"]) == 2
    assert "--where kind has no =." in capsys.readouterr().err
