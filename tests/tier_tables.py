"""Which tests are not of the tier unit, which of TensorFlow's are in the default run, and which share a worker.

An entry is a folder, a file, or a test with or without its parameters. A mark on a test has priority.
"""

# A test that uses one of these talks to a process, even if another test started it.
PROCESS_FIXTURES = {
    "cloud", "developer", "fresh", "in_terminal", "jobs", "podlift", "podlift_drill", "podlift_gcs_server", "podlift_run",
    "podlift_vertex_server", "shell", "wheel", "wheels", "with_memory",
}  # fmt: skip

PROCESS = {
    "backends/local",
    "backends/test_contract.py",
    "backends/vertex/test_spec.py::test_a_plan_asks_nobody_and_imports_nothing_of_googles",
    "backends/vertex/test_spec.py::test_the_command_that_plans_loads_nothing_that_a_plan_does_not_need",
    "backends/vertex/test_spec.py::test_what_the_machines_script_sets_reaches_the_program_with_its_arguments_as_they_are",
    "checkpoint/test_gcs_costs.py",
    "checkpoint/test_gcs_kills.py",
    "checkpoint/test_kills.py",
    "checks/test_vertex_checks.py::test_checks_import_nothing_heavy",
    "cli/test_cli.py",
    "cli/test_completion.py",
    "cli/test_diff.py::test_diff_ends_as_diff_does_and_takes_files_and_runs",
    "cli/test_get.py",
    "cli/test_json.py::test_a_submit_and_a_refusal_print_what_the_page_says",
    "cli/test_lines.py",
    "cli/test_plan_text.py::test_a_submit_begins_with_a_few_lines_and_shows_the_rest_with_v",
    "cli/test_progress.py",
    "cli/test_references.py::test_every_verb_finds_a_run_in_the_folder_into_which_it_was_brought",
    "cli/test_setting_names.py::test_a_run_of_the_first_release_that_failed_is_resumed",
    "cli/test_settings.py::test_a_task_sees_the_machine_and_nothing_else_of_the_callers_environment",
    "cli/test_settings.py::test_a_variable_can_be_copied_without_being_stored",
    "cli/test_settings.py::test_the_file_may_name_the_entry_and_everything_else",
    "cli/test_written_plan.py::test_a_written_plan_is_executed_exactly",
    "drill/test_drill.py::test_each_kill_happens_once_also_within_an_execution_of_several_steps",
    "e2e/test_drills.py",
    "e2e/test_examples.py",
    "e2e/test_isolated.py",
    "e2e/test_names.py",
    "emulator/test_gcs_fixture.py",
    "emulator/test_gcs_server.py",
    "emulator/test_gcs_survival.py",
    "emulator/vertex/test_installing.py",
    "emulator/vertex/test_replica_processes.py",
    "emulator/vertex/test_vertex_real.py",
    "emulator/vertex/test_vertex_server.py::test_googles_credentials_get_a_token_from_the_metadata_server",
    "hardware/test_accelerators.py::test_types_are_those_of_the_real_client",
    "packaging/test_audit.py",
    "packaging/test_bundle_cache.py::test_an_unchanged_project_is_read_once",
    "packaging/test_functions.py",
    "packaging/test_hostile_trees.py::test_a_hostile_tree_is_packaged_or_refused_with_a_reason[a package that shadows json]",
    "packaging/test_imports.py::test_modules_that_lose_against_pythons_own_in_a_task_are_named",
    "packaging/test_lock.py",
    "packaging/test_moving_trees.py",
    "packaging/test_notebooks.py",
    "packaging/test_pins.py::test_a_lock_is_told_to_lock_what_is_there",
    "packaging/test_project.py",
    "packaging/test_requirements.py::test_the_first_file_that_says_anything_wins_and_the_others_are_named",
    "packaging/test_runtime_archive.py::test_a_bare_python_that_has_it_speaks_to_buckets",
    "packaging/test_runtime_archive.py::test_what_a_task_imports_needs_the_standard_library_alone",
    "planning/test_bad_input.py::test_a_root_inside_a_run_is_refused",
    "planning/test_keywords.py::test_a_type_checker_finds_wrong_names_and_types_in_a_users_program",
    "process",
    "records/test_outputs.py",
    "records/test_why.py::test_a_failed_import_and_a_wrong_entry_are_told_from_an_error_of_the_program",
    "records/test_why.py::test_a_run_is_explained_live_and_after_its_supervisor_was_killed_from_anywhere",
    "records/test_why.py::test_a_run_whose_records_are_damaged_is_said_to_be",
    "records/test_why.py::test_the_explanation_is_the_message_of_the_error_and_what_the_command_shows",
    "repo/test_docs.py::test_every_page_and_source_file_that_is_mentioned_exists",
    "repo/test_promises.py::test_checkpoints_are_kept_without_tensorflow",
    "repo/test_promises.py::test_import_sdk_loads_nothing_heavy",
    "repo/test_promises.py::test_links_of_the_documents_lead_somewhere",
    "repo/test_promises.py::test_planning_a_run_loads_no_framework_and_no_cloud_client",
    "repo/test_promises.py::test_public_names_work_twice_after_every_module_was_imported",
    "repo/test_promises.py::test_the_reference_is_made_from_the_docstrings_as_they_are",
    "repo/test_promises.py::test_what_runs_in_a_training_image_needs_the_standard_library_only",
    "repo/test_words.py::test_help_of_every_verb_uses_the_fields_words",
    "runtime/test_import_guard.py",
    "runtime/test_return_value.py",
    "storage/test_emulator_address.py::test_every_command_names_a_dead_emulator_and_does_not_wait_for_it",
    "storage/test_gcs_store.py::test_without_credentials_it_is_said_how_to_get_them_and_nobody_is_asked",
    "storage/test_inputs.py::test_a_function_finds_them_too_and_a_plan_shows_them",
    "storage/test_inputs.py::test_the_program_finds_a_path_that_was_relative_to_the_callers_folder",
    "storage/test_posix_store.py::test_a_file_that_may_grow_no_further_is_an_error_and_leaves_nothing",
    "storage/test_posix_store.py::test_a_killed_holder_leaves_no_lock",
    "storage/test_posix_store.py::test_of_24_processes_one_creates_an_object_and_one_swaps_it",
    "storage/test_posix_store.py::test_what_a_killed_writer_left_is_removed_by_the_next_one_and_what_a_living_one_writes_is_not",
    "test_logging.py",
    "test_tracebacks.py::test_why_tells_the_story_in_project_paths_and_status_has_one_line",
    "testing/test_plugin.py",
    "upkeep/test_doctor.py",
    "upkeep/test_prune.py",
}

TENSORFLOW = {
    "backends/local/test_gcs_runs.py::test_a_permission_that_ends_while_training_ends_the_run_and_harms_no_checkpoint",
    "backends/local/test_graceful.py",
    "backends/local/test_preemption.py",
    "backends/local/test_template.py::test_a_forked_task_is_what_a_started_one_is",
    "backends/vertex/test_vertex_end_to_end.py",
    "checkpoint/test_epochs.py",
    "checkpoint/test_failures.py",
    "checkpoint/test_phases.py",
    "checkpoint/test_table.py",
    "checkpoint/tf",
    "cli/test_progress.py::test_a_fit_says_epoch_and_step_while_it_trains_to_every_client",
    "e2e/test_digits.py",
    "e2e/test_documents.py::test_the_tutorial_works_word_for_word",
    "e2e/test_drills.py::test_a_fit_that_is_killed_while_it_saves_ends_with_the_same_weights",
    "e2e/test_examples.py::test_an_example_prints_what_it_promises",
    "e2e/test_examples.py::test_the_first_example_trains_on_two_workers_with_unchanged_fit",
    "e2e/test_github_actions.py",
    "e2e/test_legacy.py",
    "e2e/test_offline.py",
    "e2e/tutorials",
    "preflight/test_preflight.py",
    "runtime/test_chief_writes.py::test_a_task_that_is_not_the_chief_leaves_the_shared_folder_empty",
    "runtime/test_chief_writes.py::test_after_a_kill_and_a_restart_of_two_tasks",
    "runtime/test_chief_writes.py::test_a_backup_on_a_disk_of_the_chief_alone_fails_with_a_reason",
    "runtime/test_chief_writes.py::test_a_late_worker_restores_what_the_chief_restored_and_then_deleted",
    "runtime/test_chief_writes.py::test_a_program_that_takes_worker_0_for_the_chief_still_leaves_its_model",
    "runtime/test_chief_writes.py::test_after_a_kill_and_a_restart_of_two_tasks_with_legacy_keras",
    "runtime/test_chief_writes.py::test_backups_that_are_damaged_interrupted_kept_or_removed",
    "runtime/test_chief_writes.py::test_tflite_conversion_still_finds_the_model_that_it_saves_in_between",
    "runtime/test_chief_writes.py::test_the_shared_model_holds_what_both_tasks_trained",
    "runtime/test_keras_multi_worker.py",
    "runtime/test_limits.py",
    "runtime/test_steps_per_execution.py",
    "runtime/tpu/test_stand_in.py",
}

# Reason -> tests of the tensorflow tier that are in the default run. What stands in for the others is written in
# docs/explanation/decisions/test-tiers.md.
SMOKE: dict[str, tuple[str, ...]] = {
    "the program of the front page trains": (
        "e2e/test_examples.py::test_the_first_example_trains_on_two_workers_with_unchanged_fit",
    ),
    "a program of a reader's own, without any cloud, and its model loads": (
        "e2e/test_legacy.py",
        "e2e/test_offline.py",
    ),
    "two tasks give the numbers of one": (
        "runtime/test_keras_multi_worker.py::test_all_tasks_report_and_end_with_the_same_numbers_as_one",
        "runtime/test_keras_multi_worker.py::test_it_imports_neither_tensorflow_nor_keras_itself",
    ),
    "a training that was killed, preempted, cancelled or failed continues with the same weights": (
        "backends/local/test_preemption.py::test_a_run_that_was_cancelled_goes_on_where_it_was",
        "backends/local/test_preemption.py::test_a_task_that_trains_nothing_ends_at_once",
        "backends/local/test_preemption.py::test_all_tasks_save_behind_the_same_step_go_on_without_a_charge_and_leave_their_loops_together",
        "backends/local/test_graceful.py",
        "checkpoint/test_failures.py::test_a_save_on_the_way_out_is_given_up_in_time",
        "checkpoint/test_failures.py::test_a_task_that_fails_alone_saves_nothing_and_its_error_is_known_in_time",
        "checkpoint/test_failures.py::test_tasks_meet_behind_one_step_or_not_at_all",
        "checkpoint/test_phases.py::test_a_limit_of_steps_counts_those_of_earlier_attempts",
        "checkpoint/test_failures.py::test_two_tasks_that_are_killed_and_then_fail_alike_end_with_the_same_weights",
    ),
    "what a checkpoint holds, in the tests' own process": (
        "checkpoint/tf/test_callback_state.py",
        "checkpoint/tf/test_iterators.py",
        "checkpoint/tf/test_randomness.py",
        "checkpoint/tf/test_snapshot.py",
    ),
    "one task writes what all would write": (
        "runtime/test_chief_writes.py::test_a_task_that_is_not_the_chief_leaves_the_shared_folder_empty",
    ),
    "max_steps ends every kind of fit": (
        "runtime/test_limits.py::test_a_loop_that_asks_before_each_step_does_one_less",
        "runtime/test_limits.py::test_an_evaluation_of_the_programs_own_is_left_alone",
        "runtime/test_limits.py::test_epochs_without_the_validation_that_the_program_expects_have_a_val_loss_that_is_no_number",
        "runtime/test_limits.py::test_fit_ends_after_the_steps_with_one_validation_and_callbacks_see_a_clean_end",
        "runtime/test_limits.py::test_outside_any_run_nothing_has_to_stop",
        "runtime/test_limits.py::test_the_optimizer_has_made_these_steps_and_executions_of_several_are_not_cut",
    ),
    "a program for a TPU runs here, and its preflight finds what a TPU refuses": (
        "preflight/test_preflight.py",
        "runtime/tpu/test_stand_in.py",
    ),
    "what a client sees of a fit": (
        "cli/test_progress.py::test_a_fit_says_epoch_and_step_while_it_trains_to_every_client",
    ),
}  # fmt: skip

# Reason -> tests that are in the full run only, although SMOKE or their tier would have them in the default run.
SURPLUS: dict[str, tuple[str, ...]] = {
    "the stand-in's own program checks the numbers of replicas": (
        "runtime/tpu/test_stand_in.py::test_char_lm_learns_on_four_replicas",
        "runtime/tpu/test_stand_in.py::test_digits_trains_on_eight_replicas_although_its_last_batch_is_not_for_all",
    ),
    "the same faults before a store on a disk": (
        "checkpoint/test_gcs_faults.py::test_08_a_commit_whose_fate_is_unknown_is_not_acknowledged_and_its_data_stays",
        "checkpoint/test_gcs_faults.py::test_26_of_many_attempts_at_once_the_last_one_may_write_and_all_others_are_fenced",
        "checkpoint/test_gcs_faults.py::test_28_nothing_depends_on_what_time_it_is",
        "checkpoint/test_gcs_faults.py::test_29_without_the_part_of_another_task_nothing_is_committed",
        "checkpoint/test_gcs_faults.py::test_30_a_first_task_that_dies_behind_the_receipts_leaves_the_checkpoint_before",
        "checkpoint/test_gcs_faults.py::test_34_an_error_while_the_state_is_taken_leaves_those_before_it",
        "checkpoint/test_gcs_faults.py::test_38_no_loop_of_crashes_shrinks_what_is_kept",
        "checkpoint/test_gcs_faults.py::test_a_lost_reply_is_settled_by_what_is_there",
        "checkpoint/test_gcs_faults.py::test_a_receipt_that_is_not_for_this_save_is_refused",
        "checkpoint/test_gcs_faults.py::test_a_save_that_fails_is_loud_for_ever_and_leaves_those_before_it",
    ),
    "a fit with dropout that was killed goes on in another process": (
        "checkpoint/tf/test_randomness.py::test_another_process_goes_on_with_the_same_numbers",
    ),
    "doctor and prune have tests of their own": (
        "e2e/test_documents.py::test_the_examples_of_a_guide_work[tidy-up.md]",
    ),
    "iterators of this process are compared one by one": (
        "checkpoint/tf/test_iterators.py::test_the_third_pass_over_shuffled_data_is_the_third_in_another_process",
    ),
}

# What a worker has prepared for one of these files is good for the others: an import of TensorFlow, measurements for a page.
TOGETHER = {
    "tensorflow": {
        "checkpoint/tf/test_callback_state.py",
        "checkpoint/tf/test_iterators.py",
        "checkpoint/tf/test_randomness.py",
        "checkpoint/tf/test_snapshot.py",
        "e2e/test_offline.py",
    },
    "tutorials": {"e2e/tutorials/test_programs.py", "e2e/tutorials/test_seeds.py"},
}

# Long files whose tests share nothing: each test is a group.
ALONE = {
    "backends/local/test_again.py",
    "backends/local/test_gcs_runs.py",
    "backends/local/test_local.py",
    "backends/local/test_preemption.py",
    "checkpoint/test_phases.py",
    "e2e/test_drills.py",
    "e2e/test_examples.py",
}
