"""Which task goes to which rank next."""

from jupyter_mgpu.owner.queue import Task, TaskQueue


def call(name: str, *, rank: int | None = None, priority: int = 0) -> Task:
    ranks = () if rank is None else (rank,)
    return Task(id=name, name=name, header={}, frames=[], ranks=ranks, priority=priority)


def gang(name: str, *ranks: int) -> Task:
    return Task(id=name, name=name, header={}, frames=[], ranks=ranks, is_gang=True)


def started(queue: TaskQueue, *idle: int) -> list[tuple[str, tuple[int, ...]]]:
    chosen = queue.assign(idle)
    for task, _ in chosen:
        task.state = "running"
    return [(task.name, ranks) for task, ranks in chosen]


def test_tasks_start_in_the_order_they_came() -> None:
    queue = TaskQueue()
    for name in "abc":
        queue.add(call(name))

    assert started(queue, 0, 1) == [("a", (0,)), ("b", (1,))]
    assert started(queue, 1) == [("c", (1,))]
    assert len(queue) == 0


def test_a_higher_priority_goes_first() -> None:
    queue = TaskQueue()
    queue.add(call("low"))
    queue.add(call("high", priority=5))

    assert started(queue, 0) == [("high", (0,))]


def test_a_task_for_one_rank_waits_for_that_rank() -> None:
    queue = TaskQueue()
    queue.add(call("mine", rank=1))
    queue.add(call("any"))

    assert started(queue, 0) == [("any", (0,))]
    assert started(queue, 1) == [("mine", (1,))]


def test_a_waiting_gang_keeps_its_ranks_free() -> None:
    queue = TaskQueue()
    queue.add(gang("cell", 0, 1))
    queue.add(call("later"))

    assert started(queue, 0) == []
    assert started(queue, 0, 1) == [("cell", (0, 1))]


def test_a_gang_leaves_other_ranks_alone() -> None:
    queue = TaskQueue()
    queue.add(gang("cell", 0, 1))
    queue.add(call("other"))

    assert started(queue, 0, 2) == [("other", (2,))]


def test_after_a_gang_one_task_per_rank_goes_before_the_next_gang() -> None:
    queue = TaskQueue()
    queue.add(gang("first", 0, 1))
    assert started(queue, 0, 1) == [("first", (0, 1))]
    for task in (gang("second", 0, 1), call("a"), call("b"), call("c")):
        queue.add(task)

    assert started(queue, 0, 1) == [("a", (0,)), ("b", (1,))]
    assert started(queue, 0) == []
    assert started(queue, 0, 1) == [("second", (0, 1))]
    assert started(queue, 1) == [("c", (1,))]


def test_gangs_on_different_ranks_run_at_the_same_time() -> None:
    queue = TaskQueue()
    queue.add(gang("left", 0, 1))
    queue.add(gang("right", 2, 3))

    assert started(queue, 0, 1, 2, 3) == [("left", (0, 1)), ("right", (2, 3))]


def test_a_cancelled_task_is_passed_over() -> None:
    queue = TaskQueue()
    first, second = call("first"), call("second")
    queue.add(first)
    queue.add(second)
    first.state = "cancelled"
    queue.remove(first)

    assert [task.name for task in queue] == ["second"]
    assert started(queue, 0) == [("second", (0,))]


def test_a_cancelled_gang_gives_its_ranks_back() -> None:
    queue = TaskQueue()
    cell = gang("cell", 0, 1)
    queue.add(cell)
    queue.add(call("task"))
    cell.state = "cancelled"
    queue.remove(cell)

    assert started(queue, 0) == [("task", (0,))]


def test_a_part_of_a_loop_has_the_age_of_its_loop() -> None:
    queue = TaskQueue()
    first = call("first part")
    queue.add(first)
    queue.add(call("later"))
    started(queue, 0)
    part = call("next part")
    part.since_s = first.since_s
    queue.add(part)

    assert started(queue, 0, 1) == [("next part", (0,)), ("later", (1,))]


def test_a_task_may_be_for_some_of_the_ranks() -> None:
    queue = TaskQueue()
    queue.add(Task(id="some", name="some", header={}, frames=[], ranks=(1, 2)))
    queue.add(call("any"))

    assert started(queue, 0) == [("any", (0,))]
    assert started(queue, 0) == []
    assert started(queue, 2) == [("some", (2,))]
    assert len(queue) == 0
