"""Scenes in a real browser."""

import pytest
from browser import Browser
from server.conftest import watched
from server.http.front_stage import Play


@pytest.fixture
def browse(browser: Browser, caplog: pytest.LogCaptureFixture) -> Play:
    """`play`, in the loop that the browser belongs to."""
    return lambda scene: watched(scene, browser.run, caplog)
