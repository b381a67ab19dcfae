"""The newsletter judge's Bedrock design, through `headgate newsletter` and the Lambda handler: model, `.env`, mail, calls."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

import pytest
from apps.newsletter.judge_server import judging
from apps.newsletter.mail_server import MailServer, mail_server
from apps.newsletter.newsletter_process import finish, settings, start
from apps.newsletter.newsletter_stage import open_stage, write_feeds
from cli.command_stage import Desk
from cli.conftest import desk
from providers.bedrock_stage import KEYS
from providers.stubs.bedrock import BedrockStub, Reply, refusal

import headgate
from headgate import wiring
from headgate.apps.newsletter.aws_lambda import handler
from headgate.apps.newsletter.judging import Aborted
from headgate.apps.newsletter.judging_model import choose_model
from headgate.apps.newsletter.ledger import Ledger
from headgate.apps.newsletter.options import NewsletterOptions
from headgate.apps.newsletter.report import Report
from headgate.apps.newsletter.run import Material, Newsletter, Plan
from headgate.planner import virtual
from headgate.planner.virtual import World

__all__ = ["desk"]
ENV_EXAMPLE = Path(__file__).parents[2] / ".env.example"
WARNING = "All verdicts in this mail are SIMULATED: no language model read the items."


class LambdaContext:
    aws_request_id = "request-1"

    def get_remaining_time_in_millis(self) -> int:
        return 900_000


@pytest.fixture
def lambda_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path


def _write(folder: Path, options: str, models: str = "{}") -> None:
    write_feeds(folder / "feeds", 4)
    text = f"models: {models}\napps: {{newsletter: {{{options}}}}}\n"
    (folder / "headgate.yaml").write_text(text)


def _mail_to(port: int) -> str:
    server = f"smtp_host: 127.0.0.1, smtp_port: {port}, smtp_tls: none"
    return f"mail_from: a@example.org, mail_to: [b@example.org], {server}"


def _parts(house: MailServer) -> tuple[str, str]:
    [received] = house.received
    message = message_from_bytes(received, policy=policy.default)
    assert isinstance(message, EmailMessage)
    return tuple(message.get_body((kind,)).get_content() for kind in ("plain", "html"))  # type: ignore[union-attr]


# ---- A wrong set-up is no quiet default: who judges -------------------------------------------------

OWN_FEEDS = "feeds: feeds/feeds.yaml, local_feeds: true"


@pytest.mark.parametrize("own", [OWN_FEEDS, "{mail}", f"{OWN_FEEDS}, {{mail}}"])
def test_without_a_model_nothing_is_judged_for_feeds_or_receivers_of_one_s_own(desk: Desk, own: str) -> None:
    """The model's variable had not arrived: every article got a default verdict, and the mail went out."""
    with mail_server(MailServer()) as house:
        _write(desk.folder, own.replace("{mail}", _mail_to(house.port)))
        for words in ((), ("--dry-run",)):
            result = desk.run("newsletter", "run", *words)
            assert (result.code, result.out) == (2, "")
            assert all(
                said in result.err for said in ("apps.newsletter.model", "BEDROCK_MODEL_ID", "simulated")
            )
        assert house.heard == []
    assert not (desk.folder / "newsletter").exists()
    assert "No newsletter has run yet" in desk.run("newsletter", "history").err


def test_feeds_on_the_command_line_need_a_model_too(desk: Desk) -> None:
    (desk.folder / "feeds.yaml").write_text("[https://feeds.invalid/rss]")
    result = desk.run("newsletter", "run", "--feeds", "feeds.yaml")
    assert (result.code, "BEDROCK_MODEL_ID" in result.err) == (2, True)


def test_a_lambda_without_a_model_fails_instead_of_answering_like_a_success(lambda_place: Path) -> None:
    _write(lambda_place, OWN_FEEDS)
    with pytest.raises(headgate.InvalidSettings, match="BEDROCK_MODEL_ID"):
        handler({}, LambdaContext())


def test_the_samples_are_judged_without_any_setting_and_the_report_says_by_whom(desk: Desk) -> None:
    result = desk.run("newsletter", "run", "--run-id", "s")
    assert (result.code, "8 verdicts are simulated, no language model read those items" in result.out) == (
        0,
        True,
    )
    assert "0 mailed; 6 in files only: apps.newsletter.smtp_host is not set" in result.out
    text, page = ((desk.folder / "newsletter" / f"s.{kind}").read_text() for kind in ("txt", "html"))
    assert text.splitlines()[0] == WARNING
    assert page.index(WARNING) < page.index("<h1>")


@pytest.mark.parametrize("models", ["{}", "{simulated: {upstreams: [{provider: simulated, latency_s: 0}]}}"])
def test_a_simulated_model_on_purpose_is_named_in_the_mail_s_first_line(desk: Desk, models: str) -> None:
    with mail_server(MailServer()) as house:
        _write(desk.folder, f"{OWN_FEEDS}, model: simulated, {_mail_to(house.port)}", models)
        result = desk.run("newsletter", "run", "--run-id", "s")
        assert (result.code, "3 mailed" in result.out) == (0, True)
        text, page = _parts(house)
    assert text.splitlines()[0] == WARNING
    body = page.partition("<body>")[2]
    assert body.partition(">")[2].startswith(WARNING)
    assert f"<strong>{WARNING}</strong>" in body.partition("<h1>")[0]
    assert "A language model wrote" not in text
    [run] = desk.run("newsletter", "history", "--json").json["data"]
    assert (run["judges"], run["simulated"]) == (["simulated"], 4)


def test_what_was_only_simulated_is_judged_by_the_first_real_model(desk: Desk) -> None:
    """Simulated verdicts once marked the articles as seen: no later run ever judged them."""
    with judging() as judge, mail_server(MailServer()) as house:
        config = settings(desk.folder, judge.base_url, items=4, more=f", {_mail_to(house.port)}")
        real = config.read_text()
        config.write_text(real.replace("model: judge,", "model: simulated,"))
        assert desk.run("newsletter", "run").code == 0
        house.received.clear()
        config.write_text(real)
        result = desk.run("newsletter", "run")
        assert (result.code, judge.calls) == (0, 4)
        assert "judge: openai/judge-1\n" in result.out
        text, page = _parts(house)
        assert "0 candidates" in desk.run("newsletter", "run").out
    assert "SIMULATED" not in text + page
    assert "A language model wrote the summaries (openai/judge-1)" in " ".join(text.split())
    assert "openai/judge-1" in desk.run("newsletter", "history", columns=200).out


# ---- .env -------------------------------------------------------------------------------------------


class _Refusing(StreamRequestHandler):
    def handle(self) -> None:
        self.server.asked.append(self.rfile.readline().decode().strip())  # type: ignore[attr-defined]
        while self.rfile.readline().strip():
            pass
        self.wfile.write(b"HTTP/1.1 502 No way\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@contextmanager
def _dead_network() -> Iterator[tuple[int, list[str]]]:
    """A proxy with nothing behind it: its port, and the first line of each request."""
    asked: list[str] = []
    with ThreadingTCPServer(("127.0.0.1", 0), _Refusing) as proxy:
        proxy.daemon_threads = True
        proxy.asked = asked  # type: ignore[attr-defined]
        thread = Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield proxy.server_address[1], asked
        proxy.shutdown()
        thread.join()


def test_the_example_copied_to_dotenv_makes_bedrock_judge_and_a_dead_network_is_not_the_model_id_s_fault(
    tmp_path: Path,
) -> None:
    """The design's file beside the run was not read: the simulation judged instead."""
    shutil.copy(ENV_EXAMPLE, tmp_path / ".env")
    _write(tmp_path, f"{OWN_FEEDS}, parallel: 8")
    with _dead_network() as (port, asked):
        more = f"AWS_ACCESS_KEY_ID=A\nAWS_SECRET_ACCESS_KEY=hush-hush\nHTTPS_PROXY=http://127.0.0.1:{port}\n"
        with (tmp_path / ".env").open("a") as file:
            file.write(f"{more}BEDROCK_MAX_RETRIES=0\nBEDROCK_REQUEST_INTERVAL=0\n")
        code, out, err = finish(start("run", cwd=tmp_path, HOME=str(tmp_path), BEDROCK_REGION="eu-west-1"))
    assert (code, out) == (3, "")
    assert set(asked) == {"CONNECT bedrock-runtime.eu-west-1.amazonaws.com:443 HTTP/1.1"}
    assert len(asked) <= 4, "no item is asked about twice"
    assert "bedrock/anthropic.claude-haiku-4-5-20251001-v1:0 transient" in err
    assert "check the network" in err
    assert "BEDROCK_MODEL_ID" not in err
    assert "hush" not in err


def test_a_wrong_line_in_dotenv_ends_with_2_and_its_number(desk: Desk) -> None:
    (desk.folder / ".env").write_text("BEDROCK_MODEL_ID anthropic.claude\n")
    result = desk.run("newsletter", "run")
    assert (result.code, ".env line 1" in result.err) == (2, True)


# ---- Four retries are five calls, whatever a run does ------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        refusal(429, "ThrottlingException", "Too many requests"),
        refusal(503, "ServiceUnavailableException", "Later"),
    ],
)
def test_four_retries_are_at_most_five_calls_for_an_item_over_all_rounds(
    tmp_path: Path, answer: Reply
) -> None:
    """A second round once counted from the start: up to ten calls."""
    env = {
        "BEDROCK_MODEL_ID": "anthropic.claude-haiku-4-5-20251001-v1:0",
        "BEDROCK_MAX_RETRIES": "4",
        "BEDROCK_RETRY_BASE_DELAY": "0.01",
        "BEDROCK_REQUEST_INTERVAL": "0",
    }
    options = NewsletterOptions(
        feeds=write_feeds(tmp_path / "feeds", 1, 1), local_feeds=True, out=tmp_path, most_fallbacks=1.0
    )

    async def main() -> tuple[int, Report, int]:
        async with BedrockStub(*[answer] * 20) as stub:
            chosen, model = choose_model(wiring.read_settings({}, env={}), options, env)
            [upstream] = chosen.models[model.name].upstreams
            here = {**upstream.options, "region": "us-east-1", "base_url": stub.url, **KEYS}
            judge = replace(chosen.models[model.name], upstreams=(replace(upstream, options=here),))
            chosen = replace(chosen, models={model.name: judge}, data_dir=tmp_path / "data")
            async with headgate.open(chosen, env={}) as gateway:
                newsletter = Newsletter(gateway, options, Material.read(options), model)
                report, _ = await newsletter.run(Plan(run_id="r1"))
                run = await Ledger(gateway).run("r1")
                assert run is not None
                [verdict] = (await Ledger(gateway).verdicts(run)).values()
            return stub.calls, report, verdict.attempts

    calls, report, attempts = asyncio.run(main())
    assert (calls, report.fallback, attempts) == (5, 1, 5)


def test_a_second_round_makes_only_the_calls_that_the_first_left(tmp_path: Path) -> None:
    """Five failures open the breaker and end the first round of five items; then the upstream throttles every call."""
    down = {"script": [{"status": 503, "code": "ServiceUnavailableException"}] * 5, "outcome": "throttled"}

    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, down, items=5, most_fallbacks=1.0) as stage:
            report, _ = await stage.run()
            assert report.fallback == 5
            run = await stage.ledger.run("r1")
            assert run is not None
            attempts = [one.attempts for one in (await stage.ledger.verdicts(run)).values()]
            assert sum(attempts) == stage.provider.calls
            assert max(attempts) == 5, attempts

    virtual.run(main)


@pytest.mark.parametrize(
    ("upstream", "advice", "blamed"),
    [
        ({"outcome": "transient"}, "check the network", False),
        ({"failures": {"throttled": 1.0}, "retry_after_s": 900.0}, "takes fewer calls", False),
        ({"answers_by_pattern": {"": "no JSON"}}, "choose another model", True),
        ({"outcome": {"status": 404, "code": "ResourceNotFoundException"}}, "Check models.m", True),
    ],
    ids=["network", "quota", "answers", "model"],
)
def test_an_abort_blames_the_setting_only_where_the_set_up_failed(
    tmp_path: Path, upstream: dict[str, Any], advice: str, blamed: bool
) -> None:
    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, upstream, items=40) as stage:
            with pytest.raises(Aborted, match=advice) as caught:
                await stage.run()
            assert ("models.m.upstreams" in str(caught.value)) is blamed

    virtual.run(main)


# ---- Mailed is what a mail server took ---------------------------------------------------------------


def test_without_a_mail_server_nothing_was_mailed(lambda_place: Path) -> None:
    with judging() as judge:
        settings(lambda_place, judge.base_url, items=4)
        answer = handler({}, LambdaContext())
    assert (answer["final_selected_count"], answer["notification_sent"]) == (3, False)
    assert answer["judges"] == ["openai/judge-1"]


def test_a_mail_counts_as_sent_when_the_server_took_it_and_not_before(lambda_place: Path) -> None:
    house = MailServer(greeting=b"421 back soon")
    with judging() as judge, mail_server(house):
        settings(lambda_place, judge.base_url, items=4, more=f", {_mail_to(house.port)}")
        with pytest.raises(headgate.HeadgateError, match="421 back soon"):
            handler({"id": "e"}, LambdaContext())
        house.greeting = b"220 here"
        answer = handler({"id": "e"}, LambdaContext())
    assert (answer["notification_sent"], len(house.received), judge.calls) == (True, 1, 4)


def test_the_history_tells_mails_from_files(desk: Desk) -> None:
    with judging() as judge, mail_server(MailServer()) as house:
        config = settings(desk.folder, judge.base_url, items=4)
        assert desk.run("newsletter", "run", "--run-id", "file").code == 0
        settings(desk.folder, judge.base_url, items=8, more=f", {_mail_to(house.port)}")
        assert desk.run("newsletter", "run", "--run-id", "mail").code == 0
        assert config.exists()
    runs = {run["run_id"]: run for run in desk.run("newsletter", "history", "--json").json["data"]}
    assert {name: (run["mailed"], run["written"]) for name, run in runs.items()} == {
        "file": (0, 3),
        "mail": (3, 0),
    }
