"""Faults that FaultyStore makes, before a bucket: they are the same before any store, so the full run alone has them."""

import pytest

from .test_faults import (  # noqa: F401
    test_08_a_commit_with_an_unknown_fate_is_not_acknowledged_and_its_data_stays,
    test_19_a_manifest_of_a_newer_podlift_is_an_error_and_no_older_one_replaces_it,
    test_22_a_read_that_fails_is_an_error_and_neither_a_fresh_start_nor_damage,
    test_24_an_object_that_claims_to_be_the_latest_is_not_read,
    test_26_an_attempt_that_is_opened_twice_is_opened_once,
    test_26_of_many_concurrent_attempts_the_last_may_write_and_all_others_are_fenced,
    test_27_a_zombie_neither_commits_nor_removes_once_it_is_fenced,
    test_27_a_zombie_that_commits_after_all_is_older_than_every_later_epoch,
    test_28_nothing_depends_on_the_time_of_the_clock,
    test_29_without_the_part_of_another_task_nothing_is_committed,
    test_30_a_first_task_that_dies_behind_the_receipts_leaves_the_checkpoint_before,
    test_31_a_checkpoint_of_two_tasks_is_read_by_one_and_the_other_way_round,
    test_34_an_error_while_the_state_is_taken_leaves_earlier_checkpoints,
    test_38_no_loop_of_crashes_shrinks_the_kept_checkpoints,
    test_43_garbage_of_attempts_that_may_still_write_is_left_alone,
    test_a_lost_reply_is_settled_by_the_stored_object,
    test_a_receipt_that_is_not_for_this_save_is_refused,
    test_a_save_that_fails_is_loud_for_ever_and_leaves_earlier_checkpoints,
)
from .test_gcs_faults import gcs, podlift_gcs, podlift_gcs_server, store  # noqa: F401

pytestmark = [pytest.mark.process, pytest.mark.full]
