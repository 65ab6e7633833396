"""The tools of the benchmarks: load by sockets and threads, flame pictures, exponents."""

import asyncio
import json
import time
from xml.etree import ElementTree

import pytest

from bench import folded, load
from bench.crew import in_tasks, in_threads
from bench.grounds import exponent

FOLDED = """\
run (threading.py);work (agentstate/store/execute.py);send (psycopg/cursor.py) 60
run (threading.py);work (agentstate/store/execute.py);count (agentstate/store/spent.py) 30
run (threading.py);work (agentstate/store/execute.py) 9
run (threading.py);work (agentstate/store/execute.py);<rare> (x.py) 1
"""


def test_the_client_on_raw_sockets_counts_what_was_done_and_what_was_refused(tmp_path):
    (tmp_path / "runs").write_text("r-1 7\nr-2 8\n")
    asked = load.Asked(tmp_path / "runs", "the-key", 2, '{"a":1}', "1-9")
    heard: list[bytes] = []

    async def answer(reader, writer):
        while head := await reader.readuntil(b"\r\n\r\n"):
            body = await reader.readexactly(load.length_of(head))
            heard.append(head + body)
            status = b"429 no" if len(heard) % 5 == 0 else b"201 yes"
            # In two pieces, as a network may have it.
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 4\r\n\r\nda")
            await writer.drain()
            writer.write(b"ta")

    async def go() -> dict[str, int]:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            made = await load.call(f"http://127.0.0.1:{port}", 3, 0.2, load.appends(asked))
            return load.read(made)

    told = asyncio.run(go())
    assert told["requests"] == len(heard) > 10
    assert told["refused"] == len(heard) // 5
    assert told["broken"] == 0
    bodies = [json.loads(one.split(b"\r\n\r\n")[1]) for one in heard]
    ids = [event["id"] for body in bodies for event in body["events"]]
    assert len(set(ids)) == len(ids) == 2 * len(heard)
    runs = {(one.split()[1], b"Fence: 7" in one) for one in heard}
    assert runs == {(b"/api/v1/runs/r-1/events", True), (b"/api/v1/runs/r-2/events", False)}


def test_load_that_did_nothing_or_broke_is_no_figure():
    done = {"requests": 5, "us": 1, "refused": 0, "broken": 0, "p50_us": 1, "p99_us": 1}
    assert load.read(f"Running …\n{load.MARK}{json.dumps(done)}\n") == done
    for output in (
        "unable to connect",
        load.MARK + json.dumps(done | {"broken": 1}),
        load.MARK + json.dumps(done | {"requests": 0}),
    ):
        with pytest.raises(RuntimeError, match="did not work"):
            load.read(output)


def test_what_a_thread_of_the_load_raises_ends_all_of_them_and_is_told():
    began = time.monotonic()

    def call() -> int:
        raise ValueError("gone")

    with pytest.raises(ValueError, match="gone"):
        in_threads(3, 30.0, call)
    assert time.monotonic() - began < 10


def test_tasks_that_end_at_once_are_all_counted():
    async def call() -> int:
        await asyncio.sleep(0)
        return 2

    count, lasted, took = in_tasks(5, 0.05, call)
    assert count == 2 * len(took) > 20
    assert lasted >= 0.05


def test_a_frames_width_is_its_share_and_what_is_too_narrow_is_left_out():
    found = {box.name.split()[0]: box for box in folded.boxes(folded.read(FOLDED), 0.02)}
    assert {name: round(box.share, 2) for name, box in found.items()} == {
        "send": 0.6,
        "count": 0.3,
    }
    assert found["count"].left == pytest.approx(0.6)


def test_a_flame_picture_is_xml_with_each_frame_and_stays_below_its_size():
    whole = folded.draw(FOLDED, "a <title>")
    texts = [node.text for node in ElementTree.fromstring(whole).iter() if node.text]
    assert "send (psycopg/cursor.py): 60.0%" in texts
    assert "a <title>" in texts
    wide = "\n".join(f"a;{n} (file.py) 1" for n in range(150)) + "\nb 1"
    assert len(folded.draw(wide, "t", longest=5_000).encode()) <= 5_000


def test_the_exponent_of_what_grows_in_proportion_is_one_and_of_what_stays_zero():
    assert exponent({10: 2, 100: 20, 1_000: 200}) == pytest.approx(1)
    assert exponent({10: 3, 100: 3, 1_000: 3}) == pytest.approx(0)
