"""A worker goes on at once when there is something to do: nothing here waits for the poll, which is far away."""


def test_a_task_with_a_concurrency_limit_does_not_wait_for_the_poll(env):
    """Ten runs were taken, nine waited for their turn; when they were done, the next ten came with the poll only."""
    env.tasks.add("t.one", concurrency=1)
    runs = [env.enqueue("t.one", {}) for _ in range(60)]
    env.worker(poll_interval="1h")
    env.wait_finished(runs)


def test_a_worker_that_notifications_feed_is_notified_again(env):
    env.worker(poll_interval="1h").wait_event("worker_ready")
    for _ in range(30):
        env.wait_finished(env.enqueue("t.run", {}), 30)
