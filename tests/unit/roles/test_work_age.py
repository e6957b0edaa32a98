"""The age of the work of a replica."""

from persia_cli.roles.session import Work


def test_the_age_of_work_begins_with_each_piece_and_ends_with_it() -> None:
    work = Work()
    assert work.age({}, 5.0) == ("", 0.0)
    work.begin("training step 7")
    assert work.age({}, 10.0) == ("training step 7", 0.0)
    assert work.age({}, 14.5) == ("training step 7", 4.5)
    work.begin("training step 7")
    assert work.age({}, 15.0) == ("training step 7", 0.0)
    work.end()
    assert work.age({}, 20.0) == ("", 0.0)


def test_changing_counters_show_progress() -> None:
    work = Work()
    work.begin("writing its rows")
    assert work.age({"rows": 0}, 1.0) == work.age({"rows": 5}, 9.0) == ("writing its rows", 0.0)
    assert work.age({"rows": 5}, 12.0) == ("writing its rows", 3.0)


def test_work_within_work_has_its_own_age_and_the_other_begins_anew() -> None:
    work = Work()
    begin, end = work.interruption("compiling the network")
    work.begin("training step 0")
    assert work.age({}, 0.0) == ("training step 0", 0.0)
    begin()
    assert work.age({}, 1.0) == ("compiling the network", 0.0)
    assert work.age({}, 90.0) == ("compiling the network", 89.0)
    end()
    assert work.age({}, 91.0) == ("training step 0", 0.0)
