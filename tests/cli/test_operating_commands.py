"""`headgate models`, `headgate requests` and `headgate alerts` at a keyboard, against a gateway that really serves."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from cli.command_stage import Desk, serving, until

SETTINGS = {
    "data_dir": "data",
    "models": {
        "summary": {
            "upstreams": [
                {"provider": "simulated", "latency_s": 0, "script": ["transient"]},
                {"provider": "simulated", "latency_s": 0, "slots": 3},
            ],
            "retry": {"max_attempts": 2, "first_wait_s": 0.01},
        },
        "articles": {
            "upstreams": [{"provider": "simulated", "latency_s": 0, "script": ["repeat", "repeat"]}]
        },
    },
    "apps": {"articles": {"model": "articles"}},
}


@pytest.fixture
def url(desk: Desk) -> Iterator[str]:
    (desk.folder / "headgate.yaml").write_text(json.dumps(SETTINGS))
    with serving(desk) as url:
        yield url


def call(url: str, model: str = "summary") -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "a secret question"}]}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.headers["x-request-id"])


def test_a_pause_made_through_the_database_reaches_the_gateway(desk: Desk, url: str) -> None:
    """The operator's shell and the gateway share nothing but the store."""
    assert desk.run("models", "pause", "summary").code == 0
    until(lambda: "paused" in str(_gates(url)))
    listed = desk.run("models", "list", "--url", url)
    heading, first, second, *_ = listed.out.splitlines()
    assert heading.split() == ["model", "upstream", "state", "slots", "waiting"]
    assert re.match(r"summary +simulated +paused +0/8 +0$", first)
    assert re.match(r" +simulated#2 +paused +0/3 +0$", second)
    assert desk.run("models", "resume", "summary", "--url", url).out.startswith("summary goes on")
    until(lambda: "paused" not in str(_gates(url)))
    told = desk.run("models", "list", "--url", url, "--json").json
    assert (told["data"][0]["model"], told["data"][0]["paused"], told["live"]) == ("summary", None, True)
    assert desk.run("models", "resume", "summary").out == "summary was not paused\n"


def _gates(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/queue/status", timeout=10) as answer:
        gates = json.load(answer)["upstreams"]
    return ["paused" if gate["stopped"] else "open" for gate in gates if gate["model"] == "summary"]


def test_without_a_gateway_pauses_are_known_all_the_same(desk: Desk) -> None:
    (desk.folder / "headgate.yaml").write_text("{data_dir: data, listen: 127.0.0.1:1}")
    assert desk.run("models", "pause", "simulated").code == 0
    answer = desk.run("models", "list")
    assert answer.code == 0
    assert re.search(r"^simulated +simulated +paused +8 +- +by", answer.out, re.MULTILINE)
    assert "Nothing answers at http://127.0.0.1:1" in answer.err
    unknown = desk.run("models", "pause", "nobody")
    assert (unknown.code, "known: simulated" in unknown.err) == (2, True)


def test_what_became_of_a_call_is_told_attempt_by_attempt(desk: Desk, url: str) -> None:
    request_id = call(url)
    shown = desk.run("requests", "show", request_id, "--url", url)
    assert shown.code == 0, shown.err
    assert re.search(r"1\. simulated: transient 503 after \d+ ms, then slept \d+ ms", shown.out)
    assert re.search(r"2\. simulated: ok after", shown.out)
    assert re.search(r"^tokens +\d+ in, \d+ out$", shown.out, re.MULTILINE)
    assert "secret" not in shown.out
    listed = desk.run("requests", "list", "--url", url, "--status", "ok")
    assert request_id in listed.out
    assert desk.run("requests", "list", "--url", url, "--status", "failed").out == "No calls match.\n"
    assert desk.run("requests", "show", request_id, "--url", url, "--json").json["id"] == request_id
    unknown = desk.run("requests", "show", "req_0", "--url", url)
    assert (unknown.code, "req_0" in unknown.err) == (2, True)


def test_the_calls_of_a_summary_are_shown_by_the_x_request_id_of_its_answer(desk: Desk, url: str) -> None:
    article = {
        "article_id": "a1",
        "content": "The council has met and has decided to repair the bridge. " * 4,
    }
    request = urllib.request.Request(f"{url}/api/v1/summarize", json.dumps(article).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        request_id = str(answer.headers["x-request-id"])
    shown = desk.run("requests", "show", request_id, "--url", url)
    assert shown.code == 0, shown.err
    assert shown.out.splitlines()[0] == request_id
    assert re.search(r"^calls +3 ", shown.out, re.MULTILINE)
    assert re.findall(r"^  (\d)\. simulated: ok", shown.out, re.MULTILINE) == ["1", "2", "3"]
    calls = desk.run("requests", "show", request_id, "--url", url, "--json").json["calls"]
    single = desk.run("requests", "show", calls[1], "--url", url)
    assert re.search(rf"^made for +{request_id}$", single.out, re.MULTILINE)


def test_alerts_are_listed_with_what_to_do(desk: Desk) -> None:
    """The first look at night: what is wrong, since when, and which command comes next."""
    wrong = {"upstreams": [{"provider": "simulated", "latency_s": 0, "script": [{"status": 401}] * 3}]}
    settings = {"data_dir": "data", "models": {"wrong": {**wrong, "retry": {"max_attempts": 1}}}}
    (desk.folder / "headgate.yaml").write_text(json.dumps(settings))
    with serving(desk) as url:
        assert desk.run("alerts", "list", "--url", url).out == "No alerts.\n"
        for _ in range(3):
            with pytest.raises(urllib.error.HTTPError):
                call(url, "wrong")
        until(lambda: "simulated" in desk.run("alerts", "list", "--url", url).out)
        listed = desk.run("alerts", "list", "--active", "--url", url)
        assert re.search(r"^upstream_misconfigured +simulated +active +\d+s", listed.out, re.MULTILINE)
        assert "headgate doctor" in " ".join(listed.out.split())
        alerts = desk.run("alerts", "list", "--url", url, "--json").json["data"]
        # On a busy machine others may fire, too: the loop lags, calls take long.
        (alert,) = [alert for alert in alerts if alert["rule"] == "upstream_misconfigured"]
        assert (alert["object"], alert["cleared_at"]) == ("alert", None)


def test_a_gateway_that_is_not_there_is_told_with_what_to_do(desk: Desk) -> None:
    for words in (
        ("alerts", "list"),
        ("requests", "list"),
        ("models", "list"),
        ("models", "pause", "m"),
        ("jobs", "list"),
    ):
        answer = desk.run(*words, "--url", "http://127.0.0.1:1")
        assert (answer.code, "HEADGATE_URL" in answer.err) == (4, True)


def test_a_member_of_a_paused_family_is_shown_as_paused_by_whom(desk: Desk, url: str) -> None:
    """The gateway alone knows the members in use; who paused the family is in the database."""
    settings = {**SETTINGS, "listen": url.removeprefix("http://")}
    (desk.folder / "headgate.yaml").write_text(json.dumps(settings))
    call(url, "simulated/instant")
    assert desk.run("models", "pause", "simulated/*").code == 0
    listed = desk.run("models", "list").out
    assert re.search(r"^simulated/instant +\S+ +paused .* by \S+ since", listed, re.MULTILINE), listed
