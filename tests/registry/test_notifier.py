"""Webhooks: told of every change, in order, signed, once, and whatever happens to them."""

import hashlib
import hmac
import json
import queue
import threading
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from servax_registry import delivery, notifier
from servax_registry.__main__ import main
from servax_registry.artifact import Action
from servax_registry.notifier import Notifier
from servax_registry.store.changes import Changes
from servax_registry.store.database import Database
from servax_registry.store.webhooks import Webhooks

SECRET = "0123456789abcdef"


class Hook:
    """A webhook on a real HTTP server: answers as it is told, and keeps what it was sent."""

    def __init__(self, server):
        self.url = f"http://127.0.0.1:{server.server_address[1]}/hook?token=x"
        self.answers = queue.SimpleQueue()
        self.requests = queue.SimpleQueue()
        self.hangs = threading.Event()
        self.hangs.set()

    def take(self):
        """Wait for the next request: its headers and body, and the changes in it."""
        headers, body = self.requests.get(timeout=30)
        return headers, body, json.loads(body)["changes"]

    def told(self, count):
        """Wait until it was told of so many changes, and give their versions."""
        versions = []
        while len(versions) < count:
            versions += [change["version"] for change in self.take()[2]]
        return versions


@pytest.fixture
def url(database_url):
    """Every kind of database."""
    return database_url


@pytest.fixture
def hook():
    """A webhook that answers 200 unless it is told otherwise."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.requests.put((dict(self.headers), body))
            hook.hangs.wait()
            answer = 200 if hook.answers.empty() else hook.answers.get()
            self.send_response(answer)
            self.send_header("Content-Length", "0")
            if answer == 302:
                self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        hook = Hook(server)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield hook
        hook.hangs.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def add(database, hook):
    """Add the webhook."""

    def add(url=hook.url):
        with database.write() as session:
            Webhooks(session).put(url, SECRET, datetime.now(UTC))

    return add


@pytest.fixture
def known(database):
    """Look at the one webhook."""

    def known():
        with database.read() as session:
            (found,) = Webhooks(session).all()
        return found

    return known


@contextmanager
def notifying(database):
    """Have a notifier while the block runs."""
    running = Notifier(database)
    try:
        yield running
    finally:
        running.close()


def change(database, *versions):
    """Change something, in one unit of work."""
    with database.write() as session:
        for version in versions:
            Changes(session).record("ada", Action.PUBLISH, "m", version)


def eventually(condition):
    """Wait until a condition holds."""
    while not condition():
        time.sleep(0.01)


@pytest.fixture
def impatient(monkeypatch):
    """No pauses worth mentioning."""
    monkeypatch.setattr(notifier, "_PAUSE", 0.001)
    monkeypatch.setattr(notifier, "_INTERVAL", 0.01)


@pytest.fixture
def only_when_woken(monkeypatch):
    """No polling."""
    monkeypatch.setattr(notifier, "_INTERVAL", 3600)


@pytest.mark.usefixtures("only_when_woken")
def test_a_webhook_is_told_of_what_changes_once_it_is_added(database, hook, add, known):
    """A commit wakes the notifier; the request is JSON, and signed as the documentation says."""
    change(database, 1)
    add()
    with notifying(database):
        change(database, 2, 3)
        headers, body, changes = hook.take()
        eventually(lambda: known().revision == 3)

    assert [each["version"] for each in changes] == [2, 3]
    assert changes[0] == {
        "revision": 2,
        "time": changes[0]["time"],
        "actor": "ada",
        "action": "PUBLISH",
        "model": "m",
        "version": 2,
        "alias": "",
        "previous_version": 0,
        "detail": "",
    }
    signed = headers["X-Servax-Timestamp"].encode() + b"." + body
    expected = "sha256=" + hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(headers["X-Servax-Signature"], expected)
    assert headers["X-Servax-Revision"] == "3"
    assert headers["X-Servax-Delivery"]
    assert headers["Content-Type"] == "application/json"


@pytest.mark.usefixtures("only_when_woken")
def test_many_changes_come_in_batches_and_in_order(database, hook, add):
    """What accumulated while no registry ran is told at its start, a hundred changes at a time."""
    add()
    change(database, *range(1, 251))

    with notifying(database):
        batches = [[each["version"] for each in hook.take()[2]] for _ in range(3)]

    assert [len(batch) for batch in batches] == [100, 100, 50]
    assert [version for batch in batches for version in batch] == list(range(1, 251))


@pytest.mark.usefixtures("impatient")
def test_changes_of_other_processes_are_noticed(url, database, hook, add):
    """What another process commits is told soon."""
    add()
    with notifying(database), closing(Database(url)) as other:
        change(other, 1)
        assert hook.told(1) == [1]


@pytest.mark.usefixtures("impatient")
def test_a_failure_is_tried_again_until_it_is_taken(database, hook, add, known):
    """Any answer but 2xx, a redirect too, counts as not told; it is told again, in order."""
    for answer in (500, 404, 302):
        hook.answers.put(answer)
    add()

    with notifying(database):
        change(database, 1)
        assert [hook.told(1) for _ in range(4)] == [[1]] * 4
        eventually(lambda: known().revision == 1)

    assert (known().failures, known().problem) == (0, "")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (500, "the answer was 500"),
        (302, "the answer was 302, and redirects are not followed"),
        ("refused", "ConnectError: "),
        ("none", "no answer within 0.2 s"),
    ],
)
def test_a_problem_is_kept(database, hook, add, known, monkeypatch, answer, problem):
    """What went wrong, how often, and when it is tried again can be looked up."""
    if answer == "none":
        monkeypatch.setattr(delivery, "TIMEOUT", 0.2)
        hook.hangs.clear()
    elif answer != "refused":
        hook.answers.put(answer)
    add("http://127.0.0.1:1/" if answer == "refused" else hook.url)
    before = datetime.now(UTC)

    with notifying(database):
        change(database, 1)
        eventually(lambda: known().failures)

    assert known().problem.startswith(problem)
    assert known().revision == 0
    assert known().next_time > before + timedelta(seconds=1)


def test_pauses_grow_up_to_minutes(database, add, known):
    """Each failure doubles the pause, up to five minutes."""
    add()
    pauses = []
    running = Notifier(database)
    for _ in range(40):
        now = datetime.now(UTC)
        claimed = known()
        running._settle(claimed, 1, "no")
        pauses.append(round((known().next_time - now).total_seconds()))
    running.close()

    assert pauses == [*(2**n for n in range(9)), *[300] * 31]


@pytest.mark.usefixtures("only_when_woken")
def test_a_webhook_that_hangs_delays_nothing_else(database, hook, add):
    """Commits, and other webhooks, do not wait for one that does not answer."""
    hook.hangs.clear()
    add()
    add(f"{hook.url}&other")
    with notifying(database):
        change(database, 1)
        assert [hook.told(1), hook.told(1)] == [[1], [1]]
        change(database, 2)
        hook.hangs.set()
        assert [hook.told(1), hook.told(1)] == [[2], [2]]


@pytest.mark.usefixtures("impatient")
def test_several_processes_tell_a_webhook_once(url, database, hook, add, capfd):
    """Notifiers on one database share the work: every change is told once, in order."""
    add()
    with (
        closing(Database(url)) as second,
        closing(Database(url)) as third,
        notifying(database),
        notifying(second),
        notifying(third),
    ):
        for version in range(1, 41):
            change((database, second, third)[version % 3], version)
        versions = hook.told(40)

    assert capfd.readouterr().out.count("error") == 0
    assert versions == list(range(1, 41))
    assert hook.requests.empty()


def test_a_claim_runs_out(database, add):
    """What a process that died had claimed is claimed by others later; it changes nothing then."""
    add()
    now = datetime.now(UTC)
    with database.write() as session:
        webhooks = Webhooks(session)
        (webhook,) = webhooks.all()
        first = webhooks.claim(webhook.key, now, now + timedelta(seconds=60))
        assert webhooks.claim(webhook.key, now, now + timedelta(seconds=60)) is None
        later = now + timedelta(seconds=61)
        second = webhooks.claim(webhook.key, later, later + timedelta(seconds=60))
        webhooks.told(first, 7, later)
        assert webhooks.all()[0].revision == 0
        webhooks.told(second, 8, later)
        assert webhooks.all()[0].revision == 8


def test_what_another_process_has_told_just_before_is_left_alone(database, add, known):
    """A claim that finds nothing to tell any more is given back."""
    add()
    with notifying(database) as running:
        assert running._claim(known().key) == (None, ())

    assert known().next_time <= datetime.now(UTC)


@pytest.mark.usefixtures("only_when_woken")
def test_closing_breaks_off_and_lets_others_go_on(url, database, hook, add, known):
    """A notifier that is closed does not wait for a webhook, and gives its claim back."""
    hook.hangs.clear()
    add()
    with notifying(database):
        change(database, 1)
        hook.take()
    assert known().next_time <= datetime.now(UTC)
    hook.hangs.set()

    with closing(Database(url)) as other, notifying(other):
        assert hook.told(1) == [1]


def test_changes_after_closing_are_no_error(database):
    """Whoever still commits something when the notifier is closed does not fail."""
    with notifying(database):
        pass

    change(database, 1)


class TestCommand:
    """servax-registry webhook."""

    @pytest.fixture
    def run(self, database, url):
        """Run a command, check its exit code and give what it printed."""

        def run(command, *arguments, code=0):
            result = CliRunner().invoke(main, ["webhook", command, *arguments, "--db", url])
            assert result.exit_code == code, result.output
            return result.output

        return run

    @pytest.fixture
    def secret(self, tmp_path):
        """A file with the secret."""
        file = tmp_path / "secret"
        file.write_text(f"{SECRET}\n")
        return ("--secret-file", str(file))

    def test_webhooks_are_added_listed_and_removed(self, database, run, secret, known):
        """What is added is listed, without its secret, until it is removed."""
        change(database, 1)
        assert "is told of changes" in run("add", "https://example.com/hook", *secret)
        assert known().secret == SECRET

        (found,) = json.loads(run("ls", "--json"))
        assert (found["url"], found["revision"], found["latest"]) == (
            "https://example.com/hook",
            1,
            1,
        )
        assert "https://example.com/hook" in run("ls")
        assert SECRET not in run("ls")
        run("rm", "https://example.com/hook")
        assert json.loads(run("ls", "--json")) == []

    def test_adding_again_changes_the_secret_and_forgives(self, database, run, secret, known):
        """Where it stands is kept, and what had failed is tried at once."""
        run("add", "https://example.com/hook", *secret)
        change(database, 1)
        later = datetime.now(UTC) + timedelta(days=1)
        with database.write() as session:
            webhooks = Webhooks(session)
            (webhook,) = webhooks.all()
            webhooks.failed(webhook, "no", later)

        run("add", "https://example.com/hook", *secret)

        assert (known().revision, known().failures, known().problem) == (0, 0, "")
        assert known().next_time <= datetime.now(UTC)

    def test_what_cannot_work_is_refused(self, run, secret, tmp_path):
        """Other URLs than those of web servers, and secrets that can be guessed, are refused."""
        for address in ("example.com", "ftp://example.com", "https://me:pw@example.com", "http://"):
            assert "no address of a webhook" in run("add", address, *secret, code=2)
        short = tmp_path / "short"
        short.write_text("secret\n")
        assert "has 6 characters" in run(
            "add", "https://example.com", "--secret-file", str(short), code=1
        )
        assert "there is: none" in run("rm", "https://example.com", code=1)
