"""Backups in buckets: two S3 servers, Azure's and Google's protocol, and a store that must be refused."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from lab.files import contents_once, files_of
from lab.paths import Missing, pagefold
from lab.pool import Pool
from lab.stores import Azurite, CarelessGcs, Gcs, Moto, Store, Versitygw

from .conftest import change

PUT_BYTES = 8 << 20


def started(run, kind: type[Store]) -> Store:
    """Returns a store that answers. One that this machine cannot have is skipped, unless all were asked for."""
    all_stores = os.environ.get("LAB_ALL_STORES")
    if kind is Versitygw and not all_stores:
        pytest.skip("Go takes minutes to compile it, and moto speaks S3 too; all stores: make backup-stores")
    try:
        store = kind(run)
    except Missing as missing:
        if all_stores:
            raise
        pytest.skip(str(missing))
    store.start()
    return store


@pytest.fixture(scope="module", params=[Moto, Versitygw, Azurite, Gcs])
def store(run, request):
    store = started(run, request.param)
    yield store
    store.end()


class Client:
    """The program, with what gives access to a store."""

    def __init__(self, pool: Pool, store: Store):
        self.pool, self.store, self.environment = pool, store, {**os.environ, **pool.environment, **store.environment}

    def begin(self, *words) -> subprocess.Popen:
        argv = [pagefold(), *map(str, words)]
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, env=self.environment, stdout=pipe, stderr=pipe, text=True)

    def end(self, process: subprocess.Popen, ok: bool = True) -> str:
        """Returns the output, or the message if it is to fail."""
        out, err = process.communicate(timeout=120)
        assert (process.returncode == 0) == ok, f"{process.args}: {process.returncode}\n{out}{err}"
        return out if ok else err

    def backup(self, *words, ok: bool = True) -> str:
        return self.end(self.begin("backup", *words), ok)

    def create(self, repository: str) -> dict:
        return json.loads(self.backup("create", "--json", self.pool.pool, "--to", repository))

    def listed(self, repository: str) -> list[int]:
        return [one["number"] for one in json.loads(self.backup("list", "--json", repository))["backups"]]


@pytest.mark.long
def test_a_bucket_has_what_a_directory_has(noisy, store, run):
    client, place = Client(noisy, store), f"{store.repository}/all"
    client.environment["PAGEFOLD_BACKUP_PASSPHRASE"] = "horse"
    assert "no repository" in client.backup("list", place, ok=False)
    client.backup("init", place)
    assert "already" in client.backup("init", place, ok=False)

    first = client.create(place)
    requests = first["requests"]
    assert requests["puts"] <= requests["put_bytes"] // PUT_BYTES + 2, first
    change(noisy, 1)
    second = client.create(place)
    assert second["requests"]["puts"] == 2 and second["created"]["backup"]["added_bytes"] < 1 << 20, second

    writers = [client.begin("backup", "create", noisy.pool, "--to", place) for _ in range(4)]
    for writer in writers:
        client.end(writer)
    assert client.listed(place) == [1, 2, 3, 4, 5, 6]
    for words in (["check"], ["verify"], ["verify", "--packs"]):
        assert ": 0 errors" in client.backup(*words, place)
    client.backup("restore", place, "6", f"{noisy.pool}/back")
    assert contents_once(noisy, f"{noisy.pool}/back") == files_of(noisy)

    # The keys go to the process that reads, whatever the store wants.
    folder = run.fresh("mounted")
    folder.mkdir()
    run.mount(folder)
    client.backup("mount", place, "2", folder)
    try:
        assert (folder / "text").read_bytes() == (noisy.mountpoint / "text").read_bytes()
    finally:
        client.end(client.begin("unmount", folder))

    pruned = json.loads(client.backup("prune", "--json", place, "--keep", "last=1", "--now"))
    assert len(pruned["forgotten"]) == 5, pruned
    assert ": 0 errors" in client.backup("verify", place) and client.listed(place) == [6]


def test_a_bucket_that_does_not_exist_is_named(noisy, store):
    client = Client(noisy, store)
    scheme = store.repository.split("://")[0]
    place = f"{scheme}://not-there/tank"
    for words in (["init", "--unencrypted", place], ["list", place], ["create", noisy.pool, "--to", place]):
        told = client.backup(*words, ok=False)
        assert "'not-there'" in told and "make the " in told and "<" not in told, told


def test_a_store_that_ignores_conditions_is_refused(noisy, run):
    store = started(run, CarelessGcs)
    try:
        message = Client(noisy, store).backup("init", store.repository, "--unencrypted", ok=False)
        assert "lets several creates of one object succeed" in message and "If-None-Match" in message
    finally:
        store.end()


def test_variables_of_another_service_are_not_used(noisy, store):
    """An endpoint that the environment has for one service says nothing about another."""
    client, place = Client(noisy, store), f"{store.repository}/own"
    client.backup("init", place, "--unencrypted")
    for name in {"AWS_ENDPOINT_URL", "GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT"} - store.environment.keys():
        client.environment[name] = "http://127.0.0.1:9"
    assert client.listed(place) == []
    refused = client.backup("list", "directory", "--endpoint", store.url, ok=False)
    assert "'directory' is a directory" in refused
