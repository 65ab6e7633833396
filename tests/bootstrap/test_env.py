from pathlib import Path

import pytest

from agentstate import env


@pytest.fixture
def given(monkeypatch):
    def give(value: str) -> None:
        monkeypatch.setenv("AGENTSTATE_X", value)

    return give


def refusal_of(read) -> str:
    with pytest.raises(env.BadSetting) as refused:
        read()
    return str(refused.value)


def test_a_variable_that_is_not_set_or_empty_has_its_default(given):
    assert env.integer("AGENTSTATE_X", default=7, at_least=1, at_most=9) == 7
    given("  ")
    assert env.integer("AGENTSTATE_X", default=7, at_least=1, at_most=9) == 7
    assert env.text("AGENTSTATE_X", default="d") == "d"
    assert env.flag("AGENTSTATE_X", default=True) is True
    assert env.folder("AGENTSTATE_X") is None
    assert env.words("AGENTSTATE_X", default=("a",)) == ["a"]


@pytest.mark.parametrize("value", ["0", "10", "x", "1.5", "1e1", "1_0", "٣", "--3", "9" * 30])
def test_a_number_out_of_bounds_is_refused_with_name_value_and_rule(given, value):
    given(value)
    told = refusal_of(lambda: env.integer("AGENTSTATE_X", default=7, at_least=1, at_most=9))
    assert told == f"AGENTSTATE_X is {value!r}, but must be a whole number from 1 to 9"


def test_seconds_say_so_in_the_refusal(given):
    given("x")
    told = refusal_of(lambda: env.seconds("AGENTSTATE_X", default=7, at_least=1, at_most=9))
    assert told == "AGENTSTATE_X is 'x', but must be a whole number of seconds from 1 to 9"


def test_bounds_are_included_and_may_be_negative(given):
    given("-3")
    assert env.integer("AGENTSTATE_X", default=0, at_least=-3, at_most=9) == -3


@pytest.mark.parametrize(("value", "meant"), [("1", True), ("YES", True), ("off", False)])
def test_a_flag_takes_the_usual_spellings(given, value, meant):
    given(value)
    assert env.flag("AGENTSTATE_X", default=not meant) is meant


def test_a_flag_refuses_anything_else(given):
    given("maybe")
    assert "1, true, yes, on" in refusal_of(lambda: env.flag("AGENTSTATE_X", default=True))


def test_a_secret_is_never_shown(given):
    given("hunter2")
    told = refusal_of(lambda: env.text("AGENTSTATE_X", secret=True, at_least=32))
    assert "hunter2" not in told
    assert told == "AGENTSTATE_X is (not shown), but must be at least 32 characters long"


def test_a_choice_names_what_there_is(given):
    given("c")
    told = refusal_of(lambda: env.choice("AGENTSTATE_X", default="a", among=("b", "a")))
    assert told.endswith("must be one of a, b")


def test_a_path_is_made_absolute(given, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    given("a/../b c")
    assert env.path("AGENTSTATE_X", default=Path("/")) == tmp_path / "b c"


def test_a_folder_must_exist(given, tmp_path):
    given(str(tmp_path / "none"))
    assert "an existing folder" in refusal_of(lambda: env.folder("AGENTSTATE_X"))


@pytest.mark.parametrize("value", ["console.example.org", "https://example.org/path", "ftp://x"])
def test_an_origin_has_a_scheme_and_no_path(given, value):
    given(f"https://a.example,{value}")
    assert value in refusal_of(lambda: env.origins("AGENTSTATE_X"))


def test_copies_are_in_this_process_unless_a_redis_is_named(given, monkeypatch):
    assert env.cache("AGENTSTATE_X")["BACKEND"].endswith("LocMemCache")
    monkeypatch.setattr(env.importlib.util, "find_spec", lambda _name: object())
    given("rediss://:secret@cache.example.org:6380/2")

    found = env.cache("AGENTSTATE_X")

    assert found["BACKEND"].endswith("RedisCache")
    assert found["OPTIONS"]["socket_timeout"] <= 1
    assert found["OPTIONS"]["serializer"] == "agentstate.caching.Plain"


@pytest.mark.parametrize("value", ["redis://", "memcached://host", "localhost:6379", "1"])
def test_a_cache_that_is_no_redis_is_refused_without_showing_its_password(given, value):
    given(value)

    told = refusal_of(lambda: env.cache("AGENTSTATE_X"))

    assert "AGENTSTATE_X is (not shown), but must be redis://host" in told


def test_a_redis_without_its_package_is_refused_at_start(given, monkeypatch):
    monkeypatch.setattr(env.importlib.util, "find_spec", lambda _name: None)
    given("redis://:secret@localhost:6379/0")

    told = refusal_of(lambda: env.cache("AGENTSTATE_X"))

    assert "`redis` is not installed" in told
    assert "secret" not in told


def test_rates_of_several_names_are_read_and_bad_ones_named(monkeypatch):
    monkeypatch.setenv("AGENTSTATE_X", "fleet=0, a.b~1=25")
    assert env.rates("AGENTSTATE_X", at_most=100) == {"fleet": 0, "a.b~1": 25}
    monkeypatch.delenv("AGENTSTATE_X")
    assert env.rates("AGENTSTATE_X", at_most=100) == {}
    for bad in ("fleet", "=5", "fleet=101", "fleet=-1", "fleet=1.5"):
        monkeypatch.setenv("AGENTSTATE_X", f"ok=1,{bad}")
        with pytest.raises(env.BadSetting) as refused:
            env.rates("AGENTSTATE_X", at_most=100)
        assert bad in str(refused.value)


def test_a_broker_is_one_of_those_that_are_tested(given):
    assert env.broker("AGENTSTATE_X", default="pgmq://localhost") == "pgmq://localhost"
    for fine in ("amqp://u:p@host:5672//", "amqps://host", "redis://host/0", "rediss://host"):
        given(fine)
        assert env.broker("AGENTSTATE_X", default="") == fine
    for bad in ("sqs://key:secret@", "localhost", "redis", "filesystem://"):
        given(bad)
        with pytest.raises(env.BadSetting, match=r"not shown.*amqp://") as refused:
            env.broker("AGENTSTATE_X", default="")
        assert "secret" not in str(refused.value)


def test_networks_and_an_origin_are_read_and_bad_ones_named(given):
    assert env.networks("AGENTSTATE_X") == ()
    assert env.origin("AGENTSTATE_X") == ""
    given("10.0.0.0/8, 127.0.0.1,fd00::/8")
    assert [str(network) for network in env.networks("AGENTSTATE_X")] == [
        "10.0.0.0/8", "127.0.0.1/32", "fd00::/8"]  # fmt: skip
    for bad in ("10.0.0.1/8", "localhost", "10.0.0.0/33", "*"):
        given(f"::1,{bad}")
        assert bad in refusal_of(lambda: env.networks("AGENTSTATE_X"))
    given("https://console.example.org")
    assert env.origin("AGENTSTATE_X") == "https://console.example.org"
    for bad in ("console.example.org", "https://a.org,https://b.org", "https://a.org/x"):
        given(bad)
        assert "AGENTSTATE_X" in refusal_of(lambda: env.origin("AGENTSTATE_X"))
