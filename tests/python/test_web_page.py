"""The web page of a master in a headless Chromium, with real runs. ``RINGFOLD_PICTURES=DIR`` saves pictures of it."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import chromium
import pccl
import pytest
from child import Child, Spawn, Start
from chromium import DEADLINE, Chromium
from ports import free_port
from variants import is_long

TOKEN = "an admin token"
WORLD = 5
WIDE, NARROW = (1280, 1000), (400, 1400)

PEER = """
import sys, time
from pathlib import Path
import numpy, pccl
address, name, world, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
comm = pccl.Communicator(address, name=name)
comm.connect(n_attempts=30)
data = numpy.ones(1 << 18, numpy.float32)
begins = True
while True:
    try:
        while comm.world_size < (world if begins else 2):
            comm.update_topology()
        if begins:
            comm.optimize_topology()
            begins = False
        while pause.exists():
            time.sleep(0.02)
        comm.all_reduce(data, data, op=pccl.ReduceOp.AVG)
        time.sleep(0.02)
    except pccl.PCCLError as error:
        if not error.is_retryable:
            raise
"""


@pytest.fixture
def page() -> Iterator[Chromium]:
    if not is_long():
        pytest.skip("the long variant: needs Chromium")
    program = chromium.find()
    if program is None:
        pytest.skip("Chromium is not installed (Debian: chromium)")
    with Chromium(program) as page:
        yield page
        assert [error for error in page.errors if "/api/" not in error] == []


@pytest.fixture
def node() -> Iterator[pccl.MasterNode]:
    with pccl.MasterNode("127.0.0.1:0", http="0", admin_token=TOKEN) as master:
        yield master


def start_peers(spawn: Spawn, node: pccl.MasterNode, folder: Path, page: Chromium) -> dict[str, Child]:
    """Peers named node-0, node-1 and so on, which reduce until they are killed."""
    names = [f"node-{index}" for index in range(WORLD)]
    peers = {name: spawn(PEER, node.address, name, WORLD, folder / name) for name in names}
    page.open(f"http://{node.http_address}/")
    page.wait_for(f"document.querySelectorAll('#peers tr[data-name]').length === {WORLD}")
    page.wait_for("document.querySelector('#verdict').dataset.health === 'healthy'")
    # The ring was measured, and operations are committed.
    page.wait_for("!['–', '0 B/s'].includes(document.querySelector('#tile-bytes').innerText)")
    return peers


def state_of(name: str) -> str:
    """The state of a peer in the table; an empty text if it has none."""
    return f"(document.querySelector('#peers tr[data-name=\"{name}\"]') || {{dataset: {{}}}}).dataset.state || ''"


def save(page: Chromium, name: str) -> None:
    """Saves pictures, in both themes and of a narrow window, if the variable for it is set."""
    if folder := os.environ.get("RINGFOLD_PICTURES"):
        for variant, size in (("narrow", NARROW), ("dark", WIDE), ("light", WIDE)):
            page.resize(*size)
            page.prefer("dark" if variant == "dark" else "light")
            page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            page.screenshot(Path(folder) / f"web-{name}-{variant}.png")


def test_the_page_shows_a_run_its_waits_and_a_killed_peer_within_a_second(
    page: Chromium, node: pccl.MasterNode, spawn: Spawn, tmp_path: Path
) -> None:
    peers = start_peers(spawn, node, tmp_path, page)
    if "RINGFOLD_PICTURES" in os.environ:
        # The plots begin with one minute.
        time.sleep(45)
    save(page, "healthy")
    (tmp_path / "node-3").touch()
    page.wait_for("document.querySelector('#waits .awaited')?.innerText.startsWith('node-3')")
    page.wait_for("document.querySelector('#verdict').dataset.health === 'degraded'")
    page.wait_for(f"{state_of('node-3')} === 'late'")
    save(page, "waiting")
    (tmp_path / "node-3").unlink()
    page.wait_for("document.querySelector('#verdict').dataset.health === 'healthy'")

    # The page notes the time itself: the test may be slow to ask.
    page.evaluate(
        "window.seen = null; new MutationObserver(() => { if (!window.seen && "
        f"['bad', 'gone', ''].includes({state_of('node-1')})) window.seen = Date.now(); }})"
        ".observe(document.querySelector('#peers'), {attributes: true, childList: true, subtree: true}); 0"
    )
    killed = time.time()
    peers["node-1"].signal(signal.SIGKILL)
    page.wait_for("window.seen !== null")
    took = page.evaluate("window.seen") / 1000 - killed
    print(f"a killed peer is shown after {took:.3f} s, load {os.getloadavg()[0]:.1f}")
    assert took < 1.0 or os.getloadavg()[0] > 4, f"it took {took:.2f} s to show a killed peer"
    page.wait_for(f"['gone', ''].includes({state_of('node-1')})")
    page.wait_for("document.querySelector('#events').innerText.includes('node-1')")
    # The run goes on without it, and a person who looks now still sees what has happened.
    page.wait_for("document.querySelector('#departed').innerText.includes('node-1')")
    save(page, "killed")
    page.fill("#events-filter", "nothing like this")
    assert page.text("#events") == "No event matches"
    page.fill("#peers-filter", "node-2")
    assert page.evaluate("document.querySelectorAll('#peers tr[data-name]').length") == 1


def test_the_page_says_that_the_master_is_gone_and_comes_back_with_it(page: Chromium) -> None:
    master = pccl.MasterNode("127.0.0.1:0", http="0")
    master.run()
    address = master.http_address
    page.open(f"http://{address}/")
    page.wait_for("document.querySelector('#link').innerText === 'live'")
    master.interrupt()
    master.wait()
    page.wait_for("document.querySelector('#verdict').dataset.health === 'lost'")
    assert "lost" in page.text("#verdict-text")
    with pccl.MasterNode("127.0.0.1:0", http=address):
        page.wait_for("document.querySelector('#link').innerText === 'live'")
        page.wait_for("document.querySelector('#verdict').dataset.health === 'healthy'")
    # Chromium may ask for the icon after the master has ended.
    page.errors = [error for error in page.errors if "ERR_CONNECTION_REFUSED" not in error]


def test_buttons_need_the_token_and_work_with_it(
    page: Chromium, node: pccl.MasterNode, spawn: Spawn, tmp_path: Path
) -> None:
    start_peers(spawn, node, tmp_path, page)
    assert page.evaluate("document.querySelector('#drain').hidden")
    refused = "fetch('/api/drain', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{\"on\":true}'})"
    assert page.evaluate(f"{refused}.then((answer) => answer.status)") == 401
    page.click("#operator")
    page.fill("#login-token", "a wrong token")
    page.click("#login-ok")
    page.wait_for("document.querySelector('#login-error').innerText.includes('does not know this token')")
    assert page.evaluate("document.querySelector('#drain').hidden")
    save(page, "token")
    page.fill("#login-token", TOKEN)
    page.click("#login-ok")
    page.wait_for("!document.querySelector('#drain').hidden")
    page.click("#drain")
    save(page, "confirm")
    page.click("#confirm-ok")
    page.wait_for("document.querySelector('#drain').innerText === 'Accept peers again'")
    assert "draining" in page.text("#verdict-text").lower()
    page.click("#peers tr[data-name='node-2'] button")
    page.fill("#confirm-reason", "<b>maintenance</b>")
    save(page, "evict")
    # A token that is not valid any more, and then the valid one again.
    page.evaluate("sessionStorage.setItem('ringfold-token', 'an old token')")
    page.click("#confirm-ok")
    page.wait_for("document.querySelector('#confirm-error').innerText.includes('not the admin token')")
    page.evaluate(f"sessionStorage.setItem('ringfold-token', {json.dumps(TOKEN)})")
    page.click("#confirm-ok")
    page.wait_for(f"['gone', ''].includes({state_of('node-2')})")
    # Text of people is never HTML.
    page.wait_for("document.querySelector('#events').innerText.includes('<b>maintenance</b>')")
    assert page.evaluate("document.querySelectorAll('#events b').length") == 0


def test_a_run_that_needs_a_token_is_shown_with_it_only(page: Chromium) -> None:
    with pccl.MasterNode("127.0.0.1:0", http="0", http_token="a token for readers") as master:
        page.open(f"http://{master.http_address}/")
        page.wait_for("document.querySelector('#login').open")
        assert page.text("#link") == "locked"
        page.fill("#login-token", "a token for readers")
        page.click("#login-ok")
        page.wait_for("document.querySelector('#link').innerText === 'live'")


@pytest.mark.parametrize("source", ["invented", "simulated"])
def test_200_peers_are_readable_and_drawn_in_less_than_100_ms(
    page: Chromium, node: pccl.MasterNode, start: Start, source: str
) -> None:
    if source == "invented":
        page.open(f"http://{node.http_address}/?demo=200")
    else:
        # Sessions of one process with a master process: real membership, and votes in turn.
        address = f"127.0.0.1:{free_port()}"
        words = [sys.executable, "-m", "ringfold", "bench", "--master", "--peers", "200"]
        # On a busy machine the handshakes of so many sessions of one thread take long.
        env = {"RINGFOLD_HTTP": address, "RINGFOLD_HANDSHAKE_MAX": "60s"}
        start(*words, "--rounds", "1000000", env=env).wait_for("all join", DEADLINE)
        page.open(f"http://{address}/")
    page.wait_for("document.querySelectorAll('#peers tr[data-name]').length >= 200")
    measure = """new Promise((done) => {
      const gaps = []; let last = performance.now();
      const next = (now) => { gaps.push(now - last); last = now; gaps.length < 200 ? requestAnimationFrame(next) : done(gaps); };
      requestAnimationFrame(next);
    })"""
    # What else runs beside Chromium, which has no GPU here, delays frames, so these are printed only.
    frame_ms = statistics.quantiles(page.evaluate(measure), n=20)[-1]
    drawn = []
    for _ in range(10):
        frames = page.evaluate("window.ringfold.frames")
        page.wait_for(f"window.ringfold.frames > {frames}")
        drawn.append(page.evaluate("window.ringfold.last"))
    save(page, f"200-{source}")
    text = f"drawing takes {statistics.median(drawn):.0f} ms, a frame {frame_ms:.0f} ms"
    print(text, json.dumps(drawn))
    assert statistics.median(drawn) < 100, text
    page.fill("#peers-filter", "node-123" if source == "invented" else "peer-123")
    assert page.evaluate("document.querySelectorAll('#peers tr[data-name]').length") == 1


@pytest.mark.parametrize("count", [0, 1, 2, 8, 200])
def test_nothing_is_wider_than_a_narrow_window(page: Chromium, node: pccl.MasterNode, count: int) -> None:
    page.resize(*NARROW)
    page.open(f"http://{node.http_address}/{f'?demo={count}' if count else ''}")
    page.wait_for(f"window.ringfold.frames > 0 && document.querySelectorAll('#peers tr').length >= {count}")
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW[0]
    save(page, f"demo-{count}")
