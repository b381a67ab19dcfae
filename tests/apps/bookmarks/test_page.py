"""The page: nothing from elsewhere, nothing inline, no data; and its outbox, run for real where there is node."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from apps.bookmarks.stage import a_shop
from server.http.front_stage import Play

import headgate.apps.bookmarks

STATIC = Path(str(headgate.apps.bookmarks.__file__)).parent / "static"
FILES = {
    "/bookmarks": "html",
    "/bookmarks/app.js": "javascript",
    "/bookmarks/cards.js": "javascript",
    "/bookmarks/gateway.js": "javascript",
    "/bookmarks/outbox.js": "javascript",
    "/bookmarks/style.css": "css",
    "/bookmarks/worker.js": "javascript",
}
SCRIPTS = [file.name for file in STATIC.glob("*.js")]
OUTBOX = """
const kept = new Map();
globalThis.localStorage = { getItem: (name) => kept.get(name) ?? null, setItem: (name, text) => kept.set(name, text) };
const heard = {};
globalThis.addEventListener = (name, act) => (heard[name] = act);
globalThis.setTimeout = () => 0;
globalThis.clearTimeout = () => {};
const { Outbox, TAKEN, LATER, REFUSED } = await import("OUTBOX_FILE");
const same = (found, wanted) => {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) throw new Error(`${JSON.stringify(found)}, not ${JSON.stringify(wanted)}`);
};
let answer = { outcome: LATER };
let sent = [];
const send = async (entry) => (sent.push([entry.key, entry.body.url]), answer);
const made = () => new Outbox({ send, changed: () => {} });
const outbox = made();
"""
SCENES = {
    "offline_then_online_is_sent_once_under_one_key": """
await outbox.add({ url: "https://a.example/" });
await outbox.flush();
same(outbox.entries().length, 1);
const later = made(); // The page was closed and opened again.
answer = { outcome: TAKEN };
await heard.online();
await later.flush();
same(outbox.entries(), []);
same(new Set(sent.map(([key]) => key)).size, 1);
same(sent.length, 3);
""",
    "a_double_click_is_one_entry": """
await Promise.all([outbox.add({ url: "https://a.example/" }), outbox.add({ url: "https://a.example/" })]);
same(outbox.entries().length, 1);
same(sent.length, 1);
""",
    "what_is_refused_waits_for_a_person_and_holds_up_nobody": """
answer = { outcome: REFUSED, error: "no address" };
await outbox.add({ url: "bad" });
same(outbox.entries()[0].error, "no address");
answer = { outcome: TAKEN };
await outbox.add({ url: "https://a.example/" });
same(outbox.entries().map((entry) => entry.body.url), ["bad"]);
await outbox.retry(outbox.entries()[0].key);
same(outbox.entries(), []);
same(sent[0][0], sent[2][0]);
""",
    "a_broken_store_is_an_empty_outbox": """
localStorage.setItem("headgate.bookmarks.outbox", "{nonsense");
same(outbox.entries(), []);
""",
}


def test_the_page_and_its_parts_are_served_with_a_policy_that_runs_nothing_foreign(play: Play) -> None:
    async def scene() -> None:
        async with a_shop(work=False) as shop:
            for path, kind in FILES.items():
                response = await shop.http.get(path)
                assert response.status_code == 200
                assert kind in response.headers["content-type"]
                policy = response.headers["content-security-policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert response.headers["x-content-type-options"] == "nosniff"

    play(scene)


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*src=)|\son\w+=|\sstyle=|<style", page) == []
    for file in STATIC.iterdir():
        assert re.findall(r"""(?:src|href|url|import)\s*[=(]?\s*["'(]https?:""", file.read_text()) == [], file
    assert set(re.findall(r'(?:src|href)="(/[^"]+)"', page)) <= set(FILES)


def test_words_of_others_become_text_and_nothing_else() -> None:
    """A title may be `<img onerror=…>`: no way from a string to markup may be in the script."""
    for name in SCRIPTS:
        script = (STATIC / name).read_text()
        assert (
            re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script)
            == []
        )


def test_every_control_has_a_name_and_every_element_the_script_asks_for_is_there() -> None:
    page, script = (STATIC / "index.html").read_text(), (STATIC / "app.js").read_text()
    named = set(re.findall(r'<label for="([^"]+)"', page))
    assert set(re.findall(r'<(?:input|select) id="([^"]+)"', page)) == named
    assert set(re.findall(r'at\("([^"]+)"\)', script)) <= set(re.findall(r'id="([^"]+)"', page))


def test_the_service_worker_is_for_the_page_alone_and_knows_all_of_its_files(play: Play) -> None:
    """Its scope is the page, and a file that it forgot would be missing when the gateway is away."""

    async def scene() -> None:
        async with a_shop(work=False) as shop:
            worker = await shop.http.get("/bookmarks/worker.js")
            assert worker.headers["service-worker-allowed"] == "/bookmarks"
            assert worker.headers["cache-control"] == "no-cache"
            assert "unversioned" not in worker.text
            (listed,) = re.findall(r"const FILES = \[(.+)\];", worker.text)
            kept = {f"/bookmarks/{name}" for name in re.findall(r'"([^"]+)"', listed)}
            assert kept | {"/bookmarks", "/bookmarks/worker.js"} == FILES.keys()
            assert "/v1" not in worker.text

    play(scene)


@pytest.mark.parametrize("name", SCENES)
def test_the_page_s_outbox(name: str, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("node is not installed")
    (tmp_path / "outbox.mjs").write_text((STATIC / "outbox.js").read_text())
    scene = tmp_path / "scene.mjs"
    scene.write_text(OUTBOX.replace("OUTBOX_FILE", "./outbox.mjs") + SCENES[name])
    ran = subprocess.run([node, scene], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr


def test_the_scripts_parse(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("node is not installed")
    for name in SCRIPTS:
        module = tmp_path / f"{name}.mjs"
        module.write_text((STATIC / name).read_text())
        ran = subprocess.run(
            [node, "--check", module], capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0, ran.stderr
