"""Starting and stopping an application within its process: one thing at a time, and nobody left waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from mirrormq.http.ports import Stopped
from mirrormq.node import requests
from mirrormq.node.steps import Answer, Refusal
from mirrormq.runtime.app import App
from mirrormq.runtime.control import Control, Interrupted
from mirrormq.runtime.faults import StartError
from mirrormq.runtime.folder import DataFolder, open_folder


class FakeDriver:
    """Keeps requests without answering them."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def admin(self, _request: requests.Request, done: Any) -> None:
        self.asked.append(done)


class FakeApp:
    """An application whose start takes as long as a test wants it to."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[str] = loop.create_future()
        self.asked_to_stop: asyncio.Future[str] = loop.create_future()
        self.may_start: asyncio.Future[None] = loop.create_future()
        self.begun = asyncio.Event()
        self.waits_for = "waits for b@c"
        self.driver = FakeDriver()
        self.node = object()
        self.ends: list[str] = []
        self.leaves: list[Exception] = []

    async def start(self) -> None:
        self.begun.set()
        try:
            await self.may_start
        except BaseException:
            self.ends.append("interrupted")
            raise
        self.waits_for = ""

    async def stop(self, reason: str, _hurry: asyncio.Future[Any]) -> None:
        self.ends.append(reason)

    async def close(self) -> None:
        self.ends.append("closed")

    async def leave_cluster(self) -> None:
        if self.leaves:
            raise self.leaves.pop()


class Stage:
    """A control over fake applications."""

    def __init__(self, folder: DataFolder) -> None:
        self.apps: list[FakeApp] = []
        self.states: list[str] = []
        self.next_app: FakeApp | None = None
        self.control = Control(
            "n@h",
            folder,
            self._make,
            hurry=asyncio.get_running_loop().create_future(),
            note=lambda _level, _text, **_fields: None,
            changed=lambda: self.states.append(self.control.state),
        )

    def _make(self) -> App:
        app, self.next_app = self.next_app or FakeApp(), None
        self.apps.append(app)
        return cast(App, app)

    async def begin(self) -> asyncio.Task[Any]:
        """Begin a start, and come back when the application works on it."""
        before = len(self.apps)
        task = asyncio.get_running_loop().create_task(self.control.command("start_app", {}))
        while len(self.apps) == before:
            await asyncio.wait({task}, timeout=0)
        await self.apps[-1].begun.wait()
        return task

    async def run(self) -> FakeApp:
        """Start an application."""
        task = await self.begin()
        self.apps[-1].may_start.set_result(None)
        assert await task == {"app": "running"}
        return self.apps[-1]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataFolder]:
    found = open_folder(tmp_path, fresh=False)
    yield found
    found.close()


async def refusal(stage: Stage, name: str, **given: Any) -> tuple[str, str]:
    with pytest.raises(Refusal) as refused:
        await stage.control.command(name, given)
    return refused.value.problem


async def test_the_states_follow_each_other(folder: DataFolder) -> None:
    stage = Stage(folder)
    app = await stage.run()
    assert await stage.control.command("stop_app", {}) == {"app": "stopped"}
    assert stage.states == ["starting", "running", "stopping", "stopped"]
    assert app.ends == ["shutdown"]


async def test_a_start_that_waits_for_ever_can_be_stopped(folder: DataFolder) -> None:
    stage = Stage(folder)
    starting = await stage.begin()
    assert stage.control.detail == "waits for b@c"
    await stage.control.command("stop_app", {})
    assert stage.apps[0].ends == ["interrupted"]
    assert stage.control.state == "stopped"
    with pytest.raises(Refusal, match="was stopped while it started"):
        await starting
    await stage.run()


async def test_who_interrupts_the_first_start_does_not_fail_it(folder: DataFolder) -> None:
    stage = Stage(folder)
    first = asyncio.get_running_loop().create_task(stage.control.start())
    while not stage.apps:
        await asyncio.wait({first}, timeout=0)
    await stage.control.stop("shutdown")
    with pytest.raises(Interrupted):
        await first


async def test_two_who_start_it_get_one_application(folder: DataFolder) -> None:
    stage = Stage(folder)
    first = await stage.begin()
    second = asyncio.get_running_loop().create_task(stage.control.command("start_app", {}))
    await asyncio.wait({second}, timeout=0)
    stage.apps[0].may_start.set_result(None)
    assert await first == await second == {"app": "running"}
    assert len(stage.apps) == 1


async def test_a_request_without_an_answer_is_refused_when_the_application_stops(folder: DataFolder) -> None:
    stage = Stage(folder)
    app = await stage.run()
    answers: list[Answer] = []
    stage.control.driver.admin(requests.Stop(), answers.append)
    await stage.control.command("stop_app", {})
    assert [answer.problem and answer.problem.kind for answer in answers] == ["app_stopped"]
    app.driver.asked[0](Answer(value={}))
    assert len(answers) == 1


async def test_nothing_reaches_a_node_that_does_not_run_yet(folder: DataFolder) -> None:
    stage = Stage(folder)
    with pytest.raises(Stopped, match="application is stopped; run start_app"):
        _ = stage.control.node
    starting = await stage.begin()
    with pytest.raises(Stopped, match=r"is starting \(waits for b@c\); await_startup waits for it"):
        stage.control.admin(requests.Stop(), lambda _: None)
    stage.apps[0].may_start.set_result(None)
    await starting
    assert stage.control.node is stage.apps[0].node


async def test_a_start_that_fails_is_told_and_remembered(folder: DataFolder) -> None:
    stage = Stage(folder)
    starting = await stage.begin()
    stage.apps[0].may_start.set_exception(StartError("Port 1 is used."))
    with pytest.raises(Refusal, match="Port 1 is used"):
        await starting
    assert (stage.control.state, stage.control.detail) == ("stopped", "Port 1 is used.")
    await stage.run()
    assert stage.control.detail == ""


async def test_a_failing_disk_ends_the_start_and_the_process(folder: DataFolder) -> None:
    stage = Stage(folder)
    starting = await stage.begin()
    stage.apps[0].failed.set_result("the disk is gone")
    with pytest.raises(Refusal, match="the disk is gone"):
        await starting
    assert stage.control.failed.result() == "the disk is gone"


async def test_the_process_is_told_when_the_node_is_asked_to_stop(folder: DataFolder) -> None:
    stage = Stage(folder)
    app = await stage.run()
    app.asked_to_stop.set_result("enough")
    assert await stage.control.asked_to_stop == "enough"


async def test_the_folder_is_left_alone_while_the_application_starts(folder: DataFolder) -> None:
    stage = Stage(folder)
    starting = await stage.begin()
    for name in ("reset", "force_reset", "force_boot", "join_cluster"):
        kind, text = await refusal(stage, name, node="a@b")
        assert (kind, "run stop_app first" in text) == ("app_running", True)
    await stage.control.close()
    assert stage.apps[0].ends == ["interrupted"]
    with pytest.raises(Refusal):
        await starting


async def test_a_member_that_cannot_leave_is_not_reset_unless_by_force(folder: DataFolder) -> None:
    stage = Stage(folder)
    (folder.path / "meta").mkdir()
    stage.next_app = FakeApp()
    stage.next_app.leaves.append(StartError("None of b@c, d@e answers."))
    kind, text = await refusal(stage, "reset")
    assert kind == "cannot_leave"
    assert text == (
        "None of b@c, d@e answers; run forget_cluster_node n@h on another node of the cluster,"
        " then force_reset here"
    )
    assert folder.has_data()
    await stage.control.command("force_reset", {})
    assert not folder.has_data()


async def test_a_folder_that_cannot_be_changed_is_told(tmp_path: Path) -> None:
    found = open_folder(tmp_path / "data", fresh=False)
    stage = Stage(found)
    (tmp_path / "data").rename(tmp_path / "moved")
    kind, text = await refusal(stage, "force_reset")
    assert (kind, "cannot be written" in text) == ("cannot_create", True)
    found.close()
