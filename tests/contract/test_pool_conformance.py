"""The sandbox suite against a pool of two podman hosts, each a real service with a state of its own, reached by its
socket alone. What is the same for every runtime is the very test of `test_sandbox_conformance` and `…_endings`."""

from collections.abc import AsyncIterator, Iterator

import pytest
from pool_cases import Service, make_pool, problem, services
from sandbox_cases import specification
from test_sandbox_conformance import (  # noqa: F401
    test_a_cancelled_command_is_killed,
    test_a_command_has_its_exit_code_and_both_outputs,
    test_a_listener_serves_the_sandbox_from_the_host,
    test_a_process_left_in_the_background_does_not_hold_the_command,
    test_a_timeout_kills_the_whole_tree_and_nothing_else,
    test_a_tree_made_to_break_the_copy_is_copied_without_harm,
    test_commands_run_side_by_side,
    test_files_go_in_and_out,
    test_files_survive_the_kill_and_are_gone_after_the_stop,
    test_links_are_never_followed,
    test_mounts_are_read_only,
    test_nothing_but_loopback_is_reachable,
    test_output_beyond_the_limit_keeps_both_ends,
    test_standard_input_is_given_whole,
    test_the_environment_is_the_callers_and_nothing_else,
    test_the_folder_is_the_asked_one_and_the_user_owns_it,
    test_the_kernels_side_doors_are_closed,
    test_the_user_has_no_rights,
    test_two_sandboxes_do_not_see_each_other,
    test_what_cannot_start_is_a_result_like_a_shells,
)
from test_sandbox_endings import (  # noqa: F401
    test_a_command_that_runs_when_the_sandbox_is_killed_says_so,
    test_init_survives_everything_that_the_user_sends,
    test_kill_counts_what_outlived_the_last_command,
    test_too_much_memory_kills_the_command_not_the_sandbox,
)

from engine.sandbox.images import DebianImageStore
from engine.sandbox.podman_pool.runtime import PodmanPoolRuntime
from engine.sandbox.remote.inside import RemoteSandbox

pytestmark = [
    pytest.mark.podman,
    pytest.mark.slow,
    pytest.mark.skipif(bool(problem()), reason=problem() or "podman can be had"),
]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Service]]:
    with services("one", "two") as made:
        yield made


@pytest.fixture
async def runtime(hosts: list[Service], images: DebianImageStore) -> AsyncIterator[PodmanPoolRuntime]:
    for host in hosts:
        await host.answers()
    made = make_pool(*(host.host for host in hosts))
    await made.start(images, "conformance")
    try:
        yield made
    finally:
        await made.stop()
        assert not any(host.containers() for host in hosts)


@pytest.fixture
async def sandbox(runtime: PodmanPoolRuntime) -> AsyncIterator[RemoteSandbox]:
    made = await runtime.create(specification())
    try:
        yield made
    finally:
        await made.stop()
