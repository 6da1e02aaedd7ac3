"""Small changes that a test must notice: skipped syncs, lost locks, dropped preconditions, swapped orders, wrong bounds.

`scripts/mutate` applies them one at a time to a copy of the repository and runs the named tests. `before` is found exactly
once in its file, so that the table fails loudly when the code moves.
"""

from __future__ import annotations

from typing import NamedTuple

STORE = "tests/storage/test_posix_store.py"
POWER = "tests/checkpoint/test_power.py"
FAULTS = "tests/checkpoint/test_faults.py"
SAVING = "tests/checkpoint/test_saving.py"
CATALOG = "tests/checkpoint/test_catalog.py"
PARSING = "tests/checkpoint/test_parsing.py"
POLICY = "tests/checkpoint/test_policy.py"
OTHERS = "tests/checkpoint/test_other_runs.py"
KILLS = "tests/checkpoint/test_kills.py"
GCS_STORE = "tests/storage/test_gcs_store.py"
GCS_FAULTS = "tests/checkpoint/test_gcs_faults.py"
EVENTS = "tests/records/test_events.py"
CORRUPT = "tests/records/test_corrupt.py"
RESTARTS = "tests/records/test_restarts.py"
LIFECYCLE = "tests/emulator/vertex/test_vertex_lifecycle.py"
CONDITIONS = "tests/emulator/test_gcs_conditions.py"
OBJECTS = "tests/emulator/test_gcs_objects.py"
BODIES = "tests/emulator/test_gcs_bodies.py"
SURVIVAL = "tests/emulator/test_gcs_survival.py"
LIMITS = "tests/backends/local/test_limits_of_the_machine.py"
AGAIN = "tests/backends/local/test_again.py"
RESUME = "tests/backends/local/test_resume.py"
TAIL = "tests/runtime/container/test_tail.py"
CLIENT = "tests/backends/vertex/test_vertex_client.py"
HISTORY = "tests/backends/vertex/test_vertex_history.py"
TIMELINE = "tests/records/test_timeline.py"
PRUNE, PRUNE_BUCKETS = "tests/upkeep/test_prune.py", "tests/upkeep/test_prune_in_buckets.py"
RUNS = "tests/cli/test_runs_of_backends.py"
ARCHIVE = "tests/packaging/test_runtime_archive.py"
CHECKSUMS = "tests/storage/test_checksums.py"
LOGS = "tests/backends/vertex/test_vertex_logs.py"
TAILS = "tests/backends/vertex/test_vertex_tails.py"
SUBMIT = "tests/backends/vertex/test_vertex_submit.py"
KEEPING = "tests/schedules/test_keeping.py"


class Mutation(NamedTuple):
    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


MUTATIONS = (
    # --- Schedules
    Mutation(
        "a slot that is delivered again is fired again",
        "sdk/schedules/records.py",
        "        return create(self._store, _slots(record) + slot.key, _encoded(slot))",
        "        self._store.put_new(_slots(record) + slot.key + slot.keeper[-2:], [_encoded(slot)])\n        return True",
        (KEEPING,),
    ),
    Mutation(
        "a keeper takes over at once what another one has",
        "sdk/schedules/keeper_server.py",
        "            if self._is_abandoned(record):\n                self._take_over",
        "            if True:\n                self._take_over",
        (KEEPING,),
    ),
    Mutation(
        "a keeper fires what an earlier one has left",
        "sdk/schedules/keeper_server.py",
        "        if record.key == self._key or record.keeper == self.keeper:",
        "        if True:",
        (KEEPING,),
    ),
    Mutation(
        "what was decided is decided again",
        "sdk/schedules/server.py",
        "            if record.started is None:\n                reason",
        "            if True:\n                reason",
        (KEEPING,),
    ),
    Mutation(
        "the cost of other firings does not count",
        "sdk/schedules/server.py",
        "        return budget.too_much(plan, most_usd, sum(others))",
        "        return budget.too_much(plan, most_usd, 0.0)",
        (KEEPING,),
    ),
    # --- Bytes on a disk
    Mutation(
        "the content of an object is not synced before it is linked",
        "sdk/storage/posix_store.py",
        "            posix.sync_file(temporary.handle)\n",
        "",
        (POWER,),
    ),
    Mutation(
        "the name of a new object is not synced",
        "sdk/storage/posix_store.py",
        '                self._at("linked")\n                self._sync(key)\n',
        '                self._at("linked")\n',
        (POWER,),
    ),
    Mutation(
        "the name of a swapped object is not synced",
        "sdk/storage/posix_store.py",
        '                    self._at("replaced")\n                    self._sync(key)\n',
        '                    self._at("replaced")\n',
        (POWER,),
    ),
    Mutation(
        "a new object replaces an existing one",
        "sdk/storage/posix_store.py",
        "                return os.link(temporary, path)\n",
        "                return os.replace(temporary, path)\n",
        (STORE,),
    ),
    Mutation(
        "a swap holds no lock",
        "sdk/storage/posix_store.py",
        "                with locking.held(self._root):\n                    self._expect(key, expected)\n",
        "                if True:\n                    self._expect(key, expected)\n",
        (STORE,),
    ),
    Mutation(
        "a swap does not look at the generation",
        "sdk/storage/posix_store.py",
        "                    self._expect(key, expected)\n",
        "",
        (STORE,),
    ),
    Mutation(
        "a deletion does not look at the generation",
        "sdk/storage/posix_store.py",
        "                self._expect(key, generation)\n            try:\n                os.unlink(path)\n",
        "                pass\n            try:\n                os.unlink(path)\n",
        (STORE,),
    ),
    Mutation(
        "bytes are returned although their checksum differs",
        "sdk/storage/posix_store.py",
        "        if found != trailer.crc32c:\n",
        "        if False:\n",
        (STORE, FAULTS),
    ),
    Mutation(
        "a read does not look at the generation",
        "sdk/storage/posix_store.py",
        "            if generation is not None and trailer.generation != generation:\n",
        "            if False:\n",
        (STORE,),
    ),
    Mutation(
        "the size in the last line of an object is not compared",
        "sdk/storage/posix_store.py",
        " or trailer.encode() != found[0] or trailer.size != size:\n",
        " or trailer.encode() != found[0]:\n",
        (STORE,),
    ),
    Mutation(
        "a damaged last line of an object is accepted",
        "sdk/storage/posix_store.py",
        " or trailer.encode() != found[0] or trailer.size != size:\n",
        " or trailer.size != size:\n",
        (STORE, "tests/checkpoint/test_flips.py"),
    ),
    Mutation(
        "the folder of a new object that was removed meanwhile is not made again",
        "sdk/storage/posix_store.py",
        "_LINK_TRIES = 10\n",
        "_LINK_TRIES = 1\n",
        (STORE,),
    ),
    Mutation(
        "the bytes that the kernel did not accept are left out",
        "sdk/storage/posix.py",
        "            views[0] = views[0][done:]\n",
        "            views.pop(0)\n",
        (STORE,),
    ),
    Mutation(
        "a record is not synced",
        "sdk/storage/posix.py",
        "    make_folders(os.path.dirname(path))\n    _put(path, data, synced=True)\n",
        "    make_folders(os.path.dirname(path))\n    _put(path, data, synced=False)\n",
        (POWER,),
    ),
    Mutation(
        "the name of a record is not synced",
        "sdk/storage/posix.py",
        "    _put(path, data, synced=True)\n    sync_folder(os.path.dirname(path))\n",
        "    _put(path, data, synced=True)\n",
        (POWER,),
    ),
    Mutation(
        "a new folder's name is not synced",
        "sdk/storage/posix.py",
        '    sync_folder(os.path.dirname(place) or ".")\n    return True\n',
        "    return True\n",
        (POWER,),
    ),
    Mutation(
        "a record replaces an existing one",
        "sdk/storage/posix.py",
        "        os.link(part, path)\n",
        "        os.replace(part, path)\n",
        (STORE,),
    ),
    Mutation(
        "half-written files are listed",
        "sdk/storage/posix.py",
        ' if not name.endswith(".part"))\n',
        ")\n",
        (CORRUPT, "tests/storage/test_records.py", EVENTS),
    ),
    Mutation(
        "an error of a sync is ignored",
        "sdk/storage/posix.py",
        "            if error.errno not in _UNSYNCABLE:\n                raise\n",
        "            pass\n",
        (STORE, POWER, "tests/storage/test_records.py"),
    ),
    Mutation(
        "a lock is not exclusive",
        "sdk/storage/locking.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        (STORE,),
    ),
    Mutation(
        "a temporary file of a living writer is removed",
        "sdk/storage/locking.py",
        "                    if _locked(handle):\n                        os.unlink(path)\n",
        "                    if True:\n                        os.unlink(path)\n",
        (STORE,),
    ),
    Mutation(
        "temporary files of killed writers stay",
        "sdk/storage/locking.py",
        "            self._swept = True\n            self._sweep()\n",
        "            self._swept = True\n",
        (STORE,),
    ),
    # --- The protocol of a checkpoint
    Mutation(
        "a commit is written without a look at the lease",
        "sdk/checkpoint/commit.py",
        "        check_lease(store, opening)\n",
        "",
        (FAULTS, SAVING),
    ),
    Mutation(
        "a lost reply of a commit is a failure",
        "sdk/checkpoint/commit.py",
        "            if stat is not None:\n                return stat\n",
        "",
        (FAULTS, GCS_FAULTS),
    ),
    Mutation(
        "a commit of another writer counts as our own",
        "sdk/checkpoint/commit.py",
        "    if nonce != manifest.nonce:\n",
        "    if False:\n",
        (FAULTS,),
    ),
    Mutation(
        "what a failed save has written stays",
        "sdk/checkpoint/commit.py",
        "        if rank == 0:\n            _remove(store, folder)\n        raise\n",
        "        raise\n",
        (FAULTS, SAVING),
    ),
    Mutation(
        "every task removes what a failed save has written",
        "sdk/checkpoint/commit.py",
        "        if rank == 0:\n            _remove(store, folder)\n        raise\n",
        "        _remove(store, folder)\n        raise\n",
        (FAULTS, SAVING),
    ),
    Mutation(
        "a step may be lower than the last one",
        "sdk/checkpoint/commit.py",
        "        if step < last_step:\n",
        "        if False:\n",
        (SAVING,),
    ),
    Mutation(
        "the part of another save counts as this one's",
        "sdk/checkpoint/commit.py",
        "return decode_receipt(opened.store.get(key), request.checkpoint_id, nonce, rank)\n",
        "return decode_receipt(opened.store.get(key), request.checkpoint_id, nonce, 1)\n",
        (SAVING, FAULTS),
    ),
    Mutation(
        "a new lease has the epoch of the old one",
        "sdk/checkpoint/opening.py",
        "epoch=epoch + 1, nonce=nonce",
        "epoch=max(epoch, 1), nonce=nonce",
        (FAULTS,),
    ),
    Mutation(
        "a lease is taken without comparing",
        "sdk/checkpoint/opening.py",
        'store.swap(names.LEASE, [wrap("lease", lease.__dict__)], expected=generation)',
        'store.swap(names.LEASE, [wrap("lease", lease.__dict__)], expected=_current(store)[0])',
        (FAULTS, GCS_FAULTS),
    ),
    Mutation(
        "a lease that another attempt has taken counts as ours",
        "sdk/checkpoint/opening.py",
        "    if found.nonce != lease.nonce:\n",
        "    if False:\n",
        (FAULTS,),
    ),
    Mutation(
        "a lease whose reply was lost is not ours",
        "sdk/checkpoint/opening.py",
        "        except StoreError:\n            if _holds(store, lease):\n                return lease\n            raise\n",
        "        except StoreError:\n            raise\n",
        (FAULTS, GCS_FAULTS),
    ),
    Mutation(
        "a missing, damaged or old lease counts although there are newer checkpoints",
        "sdk/checkpoint/opening.py",
        "    return generation, max(epoch, _newest_epoch(store))\n",
        "    return generation, epoch\n",
        (FAULTS, PARSING),
    ),
    Mutation(
        "the newest epoch ignores data without a commit",
        "sdk/checkpoint/opening.py",
        "    return max([0, *commits, *data])\n",
        "    return max([0, *commits])\n",
        (FAULTS, PARSING),
    ),
    Mutation(
        "a checkpoint is removed although the lease is lost",
        "sdk/checkpoint/retention.py",
        "            check_lease(self._store, self._opening)\n",
        "",
        (FAULTS, SAVING),
    ),
    Mutation(
        "data is removed before its commit",
        "sdk/checkpoint/retention.py",
        "            _delete(self._store, key, item.generation)\n            index.remove(item)\n",
        "            for data in item.data:\n                _delete(self._store, data, None)\n"
        "            _delete(self._store, key, item.generation)\n            index.remove(item)\n",
        (FAULTS, KILLS, SAVING),
    ),
    Mutation(
        "the restored checkpoint is removed before a newer one is verified",
        "sdk/checkpoint/retention.py",
        "            restore.verify(self._store, index[-1].key, self._opening.run_id)\n",
        "",
        (FAULTS, SAVING),
    ),
    Mutation(
        "the collector reads the epoch that is being written",
        "sdk/checkpoint/retention.py",
        "        if found and found[1] < epoch:\n",
        "        if found and found[1] <= epoch:\n",
        (FAULTS, SAVING, KILLS),
    ),
    Mutation(
        "the collector removes what a damaged commit may refer to",
        "sdk/checkpoint/retention.py",
        "            used |= {folder for folder in dead if checkpoint_id and names.folder_is_of(folder, checkpoint_id)}\n",
        "            pass\n",
        (FAULTS, SAVING),
    ),
    Mutation(
        "the collector removes data of living commits",
        "sdk/checkpoint/retention.py",
        "            used.update(_folders(restore.read_manifest(store, stat.key)))\n",
        "            restore.read_manifest(store, stat.key)\n",
        (FAULTS, SAVING, KILLS),
    ),
    Mutation(
        "a pinned checkpoint is removed",
        "sdk/checkpoint/retention.py",
        "        pins = set(restore.pins(self._store).values()) | {",
        "        pins = set() | {",
        (CATALOG, SAVING, FAULTS),
    ),
    Mutation(
        "a damaged checkpoint counts in keep_last",
        "sdk/checkpoint/policy.py",
        "    good = [commit for commit in commits if not commit.damaged]\n",
        "    good = list(commits)\n",
        (POLICY,),
    ),
    Mutation(
        "one checkpoint too few is kept",
        "sdk/checkpoint/policy.py",
        "[-policy.keep_last :]}\n",
        "[1 - policy.keep_last :]}\n",
        (POLICY,),
    ),
    Mutation(
        "a metric that is no number is the best",
        "sdk/checkpoint/policy.py",
        "        if not commit.damaged and math.isfinite(commit.metrics.get(name, math.nan))\n",
        "        if not commit.damaged and name in commit.metrics\n",
        (POLICY,),
    ),
    Mutation(
        "a save by steps is due one step late",
        "sdk/checkpoint/policy.py",
        "now // policy.every_steps > before // policy.every_steps\n",
        "(now - 1) // policy.every_steps > (before - 1) // policy.every_steps\n",
        (POLICY,),
    ),
    Mutation(
        "a checkpoint of another run is restored",
        "sdk/checkpoint/restore.py",
        '    if run_id and manifest.run_id not in ("", run_id):\n',
        "    if False:\n",
        (OTHERS,),
    ),
    Mutation(
        "a manifest under another name is accepted",
        "sdk/checkpoint/restore.py",
        "    if manifest.key != commit:\n",
        "    if False:\n",
        (FAULTS, PARSING, OTHERS),
    ),
    Mutation(
        "the oldest checkpoint is restored",
        "sdk/checkpoint/restore.py",
        "        for commit in reversed(commits):\n",
        "        for commit in commits:\n",
        (FAULTS, SAVING),
    ),
    Mutation(
        "a store without a checkpoint that verifies counts as empty",
        "sdk/checkpoint/restore.py",
        "    if not commits:\n        return None\n",
        "    return None\n",
        (FAULTS,),
    ),
    Mutation(
        "a checkpoint that retention removed meanwhile is put into quarantine",
        "sdk/checkpoint/restore.py",
        "                if not exists(store, commit):\n",
        "                if False:\n",
        (FAULTS, CATALOG),
    ),
    Mutation(
        "a checksum of a manifest is not compared",
        "sdk/checkpoint/envelope.py",
        "    if crc32c([text]) != int(head[2], 16):\n",
        "    if False:\n",
        (PARSING, FAULTS),
    ),
    Mutation(
        "a format of the future is read",
        "sdk/checkpoint/envelope.py",
        "    if version > VERSION:\n",
        "    if version > VERSION + 1:\n",
        (PARSING, FAULTS),
    ),
    Mutation(
        "a run that has lost its checkpoints starts from the beginning",
        "sdk/checkpoint/opening.py",
        "    if found is None and saved is not None:\n",
        "    if False:\n",
        (FAULTS, SAVING),
    ),
    Mutation(
        "an opening of another attempt is joined",
        "sdk/checkpoint/opening.py",
        "        if nonce != opening.nonce:\n            if not isinstance(error, AlreadyExistsError):\n",
        "        if False:\n            if not isinstance(error, AlreadyExistsError):\n",
        (FAULTS, SAVING),
    ),
    # --- A store in a bucket
    Mutation(
        "a write to a bucket has no precondition",
        "sdk/storage/gcs/store.py",
        '            return self._write(key, data, crc, "0")\n',
        "            return self._write(key, data, crc, None)\n",
        (GCS_STORE,),
    ),
    Mutation(
        "a lost reply of a write to a bucket is another writer's",
        "sdk/storage/gcs/store.py",
        "            if found.nonce != nonce:\n",
        "            if True:\n",
        (GCS_STORE, GCS_FAULTS),
    ),
    Mutation(
        "another writer's object in a bucket counts as our own",
        "sdk/storage/gcs/store.py",
        "            if found.nonce != nonce:\n",
        "            if False:\n",
        (GCS_STORE, GCS_FAULTS),
    ),
    Mutation(
        "bytes that a bucket stored wrongly are acknowledged",
        "sdk/storage/gcs/store.py",
        "        if (found.size, found.crc32c) != (size, crc):\n",
        "        if found.size != size:\n",
        (GCS_STORE, GCS_FAULTS),
    ),
    Mutation(
        "a listing of a bucket ends after its first page",
        "sdk/storage/gcs/store.py",
        "            if not token:\n                return\n",
        "            return\n",
        (GCS_STORE,),
    ),
    Mutation(
        "a lost reply of a deletion is a missing object",
        "sdk/storage/gcs/store.py",
        "            if not tries.unsure:\n                raise\n        except ConflictError as error:\n",
        "            raise\n        except ConflictError as error:\n",
        (GCS_STORE, GCS_FAULTS),
    ),
    # --- Records and decisions
    Mutation(
        "two threads number their records alike",
        "sdk/records/recorder.py",
        "            self._count += 1\n            count = self._count\n",
        "            count = self._count + 1\n            self._count = max(1, self._count)\n",
        (EVENTS, CORRUPT, "tests/storage/test_records.py"),
    ),
    Mutation(
        "a record that finds no room is lost without a word",
        "sdk/records/recorder.py",
        "            if not kept:\n                raise\n",
        "",
        (LIMITS, "tests/storage/test_records.py", EVENTS),
    ),
    Mutation(
        "a status is of an earlier supervisor",
        "sdk/records/events.py",
        'event.attempt or event.kind == "submitted" or event.source.endswith(ending)]',
        "True]",
        (EVENTS, RESUME),
    ),
    Mutation(
        "a peer's error is the cause",
        "sdk/records/events.py",
        "    failed.sort(key=lambda event: (is_collateral(event), event.time, event.source))\n",
        "    failed.sort(key=lambda event: (event.time, event.source))\n",
        (EVENTS,),
    ),
    Mutation(
        "a lost run counts as running",
        "sdk/records/events.py",
        "    if not supervisor_alive:\n",
        "    if False:\n",
        (EVENTS,),
    ),
    Mutation(
        "one restart too many",
        "sdk/records/restarts.py",
        "    if allowed is not None and used >= allowed:\n",
        "    if allowed is not None and used > allowed:\n",
        (RESTARTS,),
    ),
    Mutation(
        "a preemption is charged to the program's budget",
        "sdk/records/restarts.py",
        '    Reason.PREEMPTED: "preemptions",\n',
        '    Reason.PREEMPTED: "user_errors",\n',
        (RESTARTS,),
    ),
    Mutation(
        "a crash loop is noticed one attempt late",
        "sdk/records/restarts.py",
        "    return row if row >= LOOP else 0\n",
        "    return row if row > LOOP else 0\n",
        (RESTARTS,),
    ),
    Mutation(
        "the delay goes on doubling after an attempt that made progress",
        "sdk/records/restarts.py",
        " or (ended.step or 0) > (before or 0):",
        ":",
        (RESTARTS,),
    ),
    # --- The supervisor
    Mutation(
        "a stop is not heard during the delay before a restart",
        "sdk/backends/local/supervisor.py",
        "        while (requested := conditions.stop_requested()) is None and clock.monotonic() < until:\n",
        "        requested = None\n        while clock.monotonic() < until:\n",
        (f"{AGAIN}::test_cancelling_ends_the_wait_for_a_restart",),
    ),
    Mutation(
        "attempts are numbered from 1 after a resume",
        "sdk/backends/local/supervisor.py",
        "first=history.attempts + 1)\n",
        "first=1)\n",
        (RESUME,),
    ),
    Mutation(
        "a cancel request of before a resume counts again",
        "sdk/backends/local/supervisor.py",
        "handled=history.cancel_requests)\n",
        "handled=0)\n",
        (RESUME,),
    ),
    # --- The emulators
    Mutation(
        "an emulated bucket ignores preconditions of a write",
        "sdk/emulator/gcs/state.py",
        "            conditions.check(current)\n",
        "",
        (CONDITIONS,),
    ),
    Mutation(
        "an emulated bucket ignores preconditions of a read",
        "sdk/emulator/gcs/state.py",
        "        conditions.check(found, reading=reading)\n",
        "",
        (CONDITIONS, OBJECTS),
    ),
    Mutation(
        "a generation is used twice",
        "sdk/emulator/gcs/state.py",
        "        following = max(last + 1, int(self._clock.now() * 1e6))\n",
        "        following = max(last, int(self._clock.now()))\n",
        (OBJECTS, CONDITIONS, SURVIVAL),
    ),
    Mutation(
        "bytes are removed before the transaction that no longer needs them",
        "sdk/emulator/gcs/state.py",
        "        self._orphaned_blobs.append(old.blob)\n",
        "        self.blobs.remove(old.blob)\n",
        ("tests/emulator/test_gcs_state.py",),
    ),
    Mutation(
        "a wrong hash of an upload is accepted",
        "sdk/emulator/gcs/blobs.py",
        "        if actual is not None and declared != actual:\n",
        "        if False:\n",
        (BODIES, OBJECTS),
    ),
    Mutation(
        "what a resumed chunk repeats is stored twice",
        "sdk/emulator/gcs/resumable.py",
        "_skipping(call.pieces(), stored - (chunk.start or 0))",
        "_skipping(call.pieces(), 0)",
        (BODIES,),
    ),
    Mutation(
        "a chunk may leave a gap",
        "sdk/emulator/gcs/resumable.py",
        "        if (chunk.start or 0) > stored:\n",
        "        if False:\n",
        (BODIES,),
    ),
    Mutation(
        "a condition on a generation of 0 is none",
        "sdk/emulator/gcs/conditions.py",
        '        if any(each not in (None, "*", value) for each, value in zip(required',
        '        if any(each not in (None, 0, "*", value) for each, value in zip(required',
        (CONDITIONS,),
    ),
    Mutation(
        "an emulated job may be cancelled after its end",
        "sdk/emulator/vertex/lifecycle.py",
        '        if phase == "over" or self.status.state == CANCELLING:\n            return\n',
        "",
        (LIFECYCLE,),
    ),
    Mutation(
        "an emulated preemption restarts once too often",
        "sdk/emulator/vertex/lifecycle.py",
        "status.preemptions > _PREEMPTIONS",
        "status.preemptions > _PREEMPTIONS + 1",
        (LIFECYCLE,),
    ),
    Mutation(
        "an emulated worker restarts once too often",
        "sdk/emulator/vertex/lifecycle.py",
        "        count = status.restarts.get(replica, 0) + 1\n",
        "        count = status.restarts.get(replica, 0)\n",
        (LIFECYCLE,),
    ),
    Mutation(
        "the chief's success is forgotten when another replica fails with it",
        "sdk/emulator/vertex/lifecycle.py",
        "        if codes.get(CHIEF) == 0:\n",
        "        if set(codes.values()) == {0}:\n",
        (LIFECYCLE,),
    ),
    Mutation(
        "a timeout of an emulated job begins anew with each start",
        "sdk/emulator/vertex/lifecycle.py",
        "            if self.status.started is None:\n                self._set(started=self.now, moved=0.0)\n",
        "            self._set(started=self.now, moved=0.0)\n",
        (LIFECYCLE,),
    ),
    Mutation(
        "output waits without a limit while its bucket cannot be reached",
        "sdk/runtime/container/tail.py",
        "            while sum(len(data) for _, data in self._waiting) > TAIL_BYTES + _PART_BYTES:\n",
        "            while False:\n",
        (TAIL,),
    ),
    Mutation(
        "a bucket that refuses removals gets output for ever",
        "sdk/runtime/container/tail.py",
        "            # First, so that a bucket which refuses removals does not fill up.\n            self._trim()\n",
        "",
        (TAIL,),
    ),
    Mutation(
        "the last line of a task without an end is lost",
        "sdk/runtime/container/tail.py",
        "        if line:\n            self._add(line)\n",
        "",
        (TAIL,),
    ),
    Mutation(
        "a container without a reader stops the task's output",
        "sdk/runtime/container/tail.py",
        "                    alive = False\n",
        "                    return\n",
        (TAIL,),
    ),
    Mutation(
        "a shorter secret is replaced inside a longer one",
        "sdk/runtime/secret_values.py",
        "(-len(word), word)",
        "(len(word), word)",
        (TAIL,),
    ),
    Mutation(
        "an error is stored with the values that the caller passed",
        "sdk/runtime/bootstrap.py",
        "return secret_values.hidden(mask_token(text), secrets)",
        "return mask_token(text)",
        (
            "tests/runtime/container/test_container.py::test_an_error_of_the_program_is_final_unless_the_job_allows_another_try",
        ),
    ),
    Mutation(
        "a response of Vertex AI is read without a limit",
        "sdk/backends/vertex/client.py",
        'data = b"".join(islice(response.iter_content(_PIECE_BYTES), _PIECES))',
        "data = response.content",
        (CLIENT,),
    ),
    Mutation(
        "a forked process shares the connections to Vertex AI",
        "sdk/backends/vertex/client.py",
        "os.register_at_fork(after_in_child=_session.cache_clear)\n",
        "\n",
        (CLIENT,),
    ),
    Mutation(
        "a failure of the server counts as a rejection",
        "sdk/backends/vertex/client.py",
        "412, 413, 429, 501})",
        "412, 413, 429, 500, 501})",
        (CLIENT,),
    ),
    Mutation(
        "a write follows a redirect",
        "sdk/backends/vertex/client.py",
        "allow_redirects=False, stream=True",
        "stream=True",
        (CLIENT,),
    ),
    Mutation(
        "only the first page of jobs is read",
        "sdk/backends/vertex/client.py",
        '            if not query["pageToken"]:\n',
        "            if True:\n",
        (CLIENT,),
    ),
    Mutation(
        "after a lost create, an unreadable list is reported as a job that was not started",
        "sdk/backends/vertex/create_job.py",
        "        except (OutcomeUnknownError, VertexRejectedError) as error:\n            # Not",
        "        except () as error:\n            # Not",
        (CLIENT,),
    ),
    Mutation(
        "a waiting job shows the first reason instead of the last",
        "sdk/backends/vertex/history.py",
        "for each in reported[-1:]]",
        "for each in reported[:1]]",
        (HISTORY,),
    ),
    Mutation(
        "a restart that did not come is part of the timeline",
        "sdk/records/timeline.py",
        "attempt.over = verdict >= attempt.time",
        "attempt.over = False",
        (TIMELINE,),
    ),
    Mutation(
        "prune does not read what jobs need",
        "sdk/upkeep/prune/bucket.py",
        '            patterns.append("runs/*/jobs/*.json")\n',
        "            pass\n",
        (PRUNE_BUCKETS,),
    ),
    Mutation(
        "prune takes a launch spec that names nothing for one that needs nothing",
        "sdk/upkeep/prune/bucket.py",
        'must = "/jobs/" not in name or name.endswith(".launch_spec.json")',
        'must = "/jobs/" not in name',
        (PRUNE_BUCKETS,),
    ),
    Mutation(
        "prune removes a run that a record has named since it was found",
        "sdk/upkeep/prune/__init__.py",
        'if item.kind == "run" and (why := others().why(item.name)):',
        'if item.kind == "" and (why := others().why(item.name)):',
        (PRUNE_BUCKETS,),
    ),
    Mutation(
        "prune takes a folder that cannot be listed for an empty one",
        "sdk/upkeep/prune/local.py",
        '[path for path, _ in folders.entries(folder) if path.suffix == ".json"]',
        '[*folder.glob("*.json")]',
        (PRUNE,),
    ),
    Mutation(
        "runs of several roots are not in one order",
        "sdk/planning/references.py",
        "return sorted(found, reverse=True), problems",
        "return found, problems",
        (RUNS,),
    ),
    Mutation(
        "a limit of runs applies before their filter",
        "sdk/api.py",
        "at_most = limit if backend is None and not wanted and name is None else None",
        "at_most = limit",
        (RUNS,),
    ),
    Mutation(
        "an archive of podlift stays after a file of it has changed",
        "sdk/packaging/runtime_archive.py",
        "        yield path, info.st_size, info.st_mtime_ns\n",
        "        yield path, 0, 0\n",
        (ARCHIVE,),
    ),
    Mutation(
        "a C library that computes something else is used for checksums",
        "sdk/storage/checksums.py",
        "            if extend(0, _KNOWN[0], len(_KNOWN[0])) == _KNOWN[1]:\n",
        "            if True:\n",
        (CHECKSUMS,),
    ),
    Mutation(
        "a C library of another platform stops the search",
        "sdk/storage/checksums.py",
        "                continue  # of another platform\n",
        "                raise\n",
        (CHECKSUMS,),
    ),
    Mutation(
        "the last output of a replica is its first",
        "sdk/backends/vertex/logs.py",
        "page=_LAST_LINES, newest_first=True)",
        "page=_LAST_LINES)",
        (LOGS,),
    ),
    Mutation(
        "parts of kept output are in the order of their uploads",
        "sdk/backends/vertex/tails.py",
        "sorted(parts, key=lambda each: each.name)",
        "sorted(parts, key=lambda each: each.created)",
        (f"{TAILS}::test_parts_are_read_in_their_order_and_tasks_by_the_time_of_their_uploads",),
    ),
    Mutation(
        "a search for a lost job overlooks that the run was cancelled",
        "sdk/backends/vertex/create_job.py",
        "            created = read_created(self._store, self._request.number)\n"
        "            if created is not None:\n                return created\n            found =",
        "            found =",
        (SUBMIT,),
    ),
)
